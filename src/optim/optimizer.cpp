#include "llmc/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/trace.h"
#include "llmc/core/error.h"
#include "llmc/nn/transformer.h"
#include "optim/exchange.h"

namespace llmc {
namespace {

void check_guard(std::string_view option, float value) {
  if (!std::isfinite(value) || value < 0.0f) {
    fail(ErrorKind::kConfig, "optimizer", option, ": expected a finite number of at least 0, got ",
         value);
  }
}

void check_sharing(const Sharing& sharing, const ParameterSet& parameters) {
  if (sharing.zero_stage != 0 && sharing.zero_stage != 1) {
    fail(ErrorKind::kConfig, "optimizer", "zero_stage: expected 0 or 1, got ", sharing.zero_stage);
  }
  if (sharing.wire != DType::kF32 && sharing.wire != DType::kBF16) {
    fail(ErrorKind::kConfig, "optimizer", "wire: expected f32 or bf16, got ",
         name_of(sharing.wire));
  }
  if (sharing.ranks() != parameters.ranks()) {
    fail(ErrorKind::kConfig, "optimizer", "expected parameters planned for ", sharing.ranks(),
         " ranks, got them for ", parameters.ranks(), "; set TransformerOptions::ranks");
  }
}

}  // namespace

std::vector<UpdateRange> update_ranges(const ParameterSet& parameters, int slice, int slices) {
  std::vector<UpdateRange> ranges;
  for (const Parameter& parameter : parameters.table()) {
    const Bucket& bucket = parameters.buckets()[parameter.bucket];
    const std::int64_t size = bucket.size / slices;
    const std::int64_t begin = std::max(parameter.offset, slice * size);
    const std::int64_t end =
        std::min(parameter.offset + parameter.shape.numel(), (slice + 1) * size);
    if (begin >= end) continue;
    if (!ranges.empty() && ranges.back().bucket == parameter.bucket &&
        ranges.back().group == parameter.group) {
      ranges.back().count = end - ranges.back().begin;
    } else {
      ranges.push_back(
          {parameter.bucket, begin, end - begin, parameter.group, bucket.first_index + begin});
    }
  }
  return ranges;
}

Optimizer::Optimizer(const ParameterSet& parameters, const GuardOptions& guard,
                     const Sharing& sharing)
    : parameters_(&parameters), guard_options_(guard), sharing_(sharing) {
  check_guard("grad_clip", guard.grad_clip);
  check_guard("skip_loss_z", guard.skip_loss_z);
  check_guard("skip_grad_z", guard.skip_grad_z);
  if (!parameters.has_gradients()) {
    fail(ErrorKind::kConfig, "optimizer",
         "expected parameters with gradients; plan the model for training");
  }
  check_sharing(sharing, parameters);
  std::int64_t blocks = 0;
  for (std::size_t b = 0; b < parameters.buckets().size(); ++b) {
    if (parameters.buckets()[b].size % kNormBlock != 0) {
      fail(ErrorKind::kConfig, "optimizer",
           "expected planned parameters; call ParameterSet::plan before");
    }
    blocks += norm_blocks(parameters, b);
  }
  ranges_ = sharing.sliced() ? update_ranges(parameters, sharing.rank(), sharing.ranks())
                             : update_ranges(parameters);
  partials_id_ =
      arena_.declare(MemoryKind::kOptimizer, "norm.partials", DType::kF32, Shape{blocks});
  guard_id_ = arena_.declare(MemoryKind::kOptimizer, "guard", DType::kU8,
                             Shape{static_cast<std::int64_t>(sizeof(StepGuard))});
  if (sharing.ranks() > 1) exchange_ = std::make_shared<Exchange>(parameters, sharing, arena_);
}

Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

Optimizer::StateId Optimizer::declare_state(std::string name) {
  State state{std::move(name), {}};
  for (std::size_t b = 0; b < parameters_->buckets().size(); ++b) {
    state.segments.push_back(arena_.declare(MemoryKind::kOptimizer,
                                            concat(state.name, ".", parameters_->buckets()[b].name),
                                            DType::kF32, Shape{held_size(b)}));
  }
  states_.push_back(std::move(state));
  return states_.size() - 1;
}

void Optimizer::allocate(const Device& device) {
  arena_.allocate(device);
  if (exchange_) exchange_->open(device, arena_);
}

void Optimizer::attach(Transformer& model) {
  if (!exchange_) return;
  Stream& stream = model.stream();
  const std::weak_ptr<Exchange> weak = exchange_;
  model.on_bucket_ready([weak, &stream](std::size_t bucket) {
    if (const auto exchange = weak.lock()) exchange->bucket_ready(stream, bucket);
  });
  model.on_bucket_needed([weak, &stream](std::size_t bucket) {
    if (const auto exchange = weak.lock()) exchange->bucket_needed(stream, bucket);
  });
  exchange_->attach();
}

void Optimizer::start(Stream& stream) {
  for (const State& state : states_) {
    for (const Arena::Id segment : state.segments) zero(stream, arena_.tensor(segment));
  }
  zero(stream, guard_bytes());
  start_state(stream);
  started_ = true;
}

void Optimizer::step(Stream& stream, StepBlock* block) {
  if (!started_) {
    fail(ErrorKind::kConfig, "optimizer",
         "step: expected a call of start or a restored state "
         "before it");
  }
  const TraceRange trace("optimizer step");
  const Tensor partials = arena_.tensor(partials_id_);
  if (exchange_) {
    exchange_->all_needed(stream);
    exchange_->sum_up(stream, block, partials);
  } else {
    std::int64_t first = 0;
    for (std::size_t b = 0; b < parameters_->buckets().size(); ++b) {
      const std::int64_t blocks = parameters_->buckets()[b].size / kNormBlock;
      sum_of_squares(stream, partials.flat(first, blocks), parameters_->bucket_gradients(b));
      first += blocks;
    }
  }
  auto* guard = reinterpret_cast<StepGuard*>(guard_bytes().data<std::uint8_t>());
  finish_gradients(stream, block, guard, partials, guard_options_);
  update_all(stream, block);
}

// The first bucket is needed first: it travels while the others are updated. Those travel beside
// the next forward pass, which leaves them more of the memory's time than an update does.
void Optimizer::update_all(Stream& stream, const StepBlock* block) {
  if (!sharing_.sliced()) return update(stream, ranges_, block);
  const std::span<const UpdateRange> all = ranges_;
  const auto end = std::find_if(all.begin(), all.end(),
                                [](const UpdateRange& range) { return range.bucket != 0; });
  const auto first = static_cast<std::size_t>(end - all.begin());
  if (first > 0) update(stream, all.first(first), block);
  exchange_->send_parameters(stream, 0);
  if (first < all.size()) update(stream, all.subspan(first), block);
  for (std::size_t b = 1; b < parameters_->buckets().size(); ++b) {
    exchange_->send_parameters(stream, b);
  }
}

void Optimizer::need_parameters(Stream& stream) const {
  if (exchange_) exchange_->all_needed(stream);
}

void Optimizer::on_wait(std::function<void(Stream&)> mark) {
  if (exchange_) exchange_->on_wait(std::move(mark));
}

std::vector<std::string> Optimizer::state_names() const {
  std::vector<std::string> names;
  for (const State& state : states_) names.push_back(state.name);
  return names;
}

void Optimizer::visit_state(const StateVisitor& visit) const {
  for (const State& state : states_) {
    for (const Parameter& parameter : parameters_->table()) {
      const std::int64_t held = held_begin(parameter.bucket);
      const std::int64_t begin = std::max(parameter.offset, held);
      const std::int64_t end =
          std::min(parameter.offset + parameter.shape.numel(), held + held_size(parameter.bucket));
      if (begin >= end) continue;
      const Tensor bucket = arena_.tensor(state.segments[parameter.bucket]);
      Tensor tensor = bucket.flat(begin - held, end - begin);
      if (tensor.numel() == parameter.shape.numel()) tensor = tensor.view(parameter.shape);
      visit({concat(state.name, ".", parameter.name), parameter.shape, begin - parameter.offset,
             tensor});
    }
  }
}

std::int64_t Optimizer::held_begin(std::size_t bucket) const {
  return sharing_.sliced() ? exchange_->slice_begin(bucket) : 0;
}

std::int64_t Optimizer::held_size(std::size_t bucket) const {
  return sharing_.sliced() ? exchange_->slice_size(bucket) : parameters_->buckets()[bucket].size;
}

StepGuard Optimizer::read_guard(Stream& stream) const {
  StepGuard guard;
  copy_to_host(stream, &guard, guard_bytes());
  return guard;
}

void Optimizer::write_guard(Stream& stream, const StepGuard& guard) {
  copy_from_host(stream, guard_bytes(), &guard);
}

Tensor Optimizer::guard_bytes() const {
  return arena_.tensor(guard_id_);
}

Tensor Optimizer::values(const UpdateRange& range) const {
  return parameters_->bucket_values(range.bucket).flat(range.begin, range.count);
}

Tensor Optimizer::gradients(const UpdateRange& range) const {
  return parameters_->bucket_gradients(range.bucket).flat(range.begin, range.count);
}

Tensor Optimizer::state(StateId id, const UpdateRange& range) const {
  const Tensor bucket = arena_.tensor(states_[id].segments[range.bucket]);
  return bucket.flat(range.begin - held_begin(range.bucket), range.count);
}

}  // namespace llmc
