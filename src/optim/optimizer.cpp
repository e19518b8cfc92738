#include "llmc/optim/optimizer.h"

#include <cmath>
#include <utility>

#include "core/trace.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

void check_guard(std::string_view option, float value) {
  if (!std::isfinite(value) || value < 0.0f) {
    fail(ErrorKind::kConfig, "optimizer", option, ": expected a finite number of at least 0, got ",
         value);
  }
}

}  // namespace

std::vector<UpdateRange> update_ranges(const ParameterSet& parameters) {
  std::vector<UpdateRange> ranges;
  for (const Parameter& parameter : parameters.table()) {
    const std::int64_t end = parameter.offset + parameter.shape.numel();
    if (!ranges.empty() && ranges.back().bucket == parameter.bucket &&
        ranges.back().group == parameter.group) {
      ranges.back().count = end - ranges.back().begin;
    } else {
      const Bucket& bucket = parameters.buckets()[parameter.bucket];
      ranges.push_back({parameter.bucket, parameter.offset, parameter.shape.numel(),
                        parameter.group, bucket.first_index + parameter.offset});
    }
  }
  return ranges;
}

Optimizer::Optimizer(const ParameterSet& parameters, const GuardOptions& guard)
    : parameters_(&parameters), guard_options_(guard), ranges_(update_ranges(parameters)) {
  check_guard("grad_clip", guard.grad_clip);
  check_guard("skip_loss_z", guard.skip_loss_z);
  check_guard("skip_grad_z", guard.skip_grad_z);
  if (!parameters.has_gradients()) {
    fail(ErrorKind::kConfig, "optimizer",
         "expected parameters with gradients; plan the model for training");
  }
  std::int64_t blocks = 0;
  for (const Bucket& bucket : parameters.buckets()) {
    if (bucket.size % kNormBlock != 0) {
      fail(ErrorKind::kConfig, "optimizer",
           "expected planned parameters; call ParameterSet::plan before");
    }
    blocks += bucket.size / kNormBlock;
  }
  partials_id_ =
      arena_.declare(MemoryKind::kOptimizer, "norm.partials", DType::kF32, Shape{blocks});
  guard_id_ = arena_.declare(MemoryKind::kOptimizer, "guard", DType::kU8,
                             Shape{static_cast<std::int64_t>(sizeof(StepGuard))});
}

Optimizer::StateId Optimizer::declare_state(std::string name) {
  State state{std::move(name), {}};
  for (const Bucket& bucket : parameters_->buckets()) {
    state.segments.push_back(arena_.declare(MemoryKind::kOptimizer,
                                            concat(state.name, ".", bucket.name), DType::kF32,
                                            Shape{bucket.size}));
  }
  states_.push_back(std::move(state));
  return states_.size() - 1;
}

void Optimizer::allocate(const Device& device) {
  arena_.allocate(device);
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
  std::int64_t first = 0;
  for (std::size_t b = 0; b < parameters_->buckets().size(); ++b) {
    const std::int64_t blocks = parameters_->buckets()[b].size / kNormBlock;
    sum_of_squares(stream, partials.flat(first, blocks), parameters_->bucket_gradients(b));
    first += blocks;
  }
  auto* guard = reinterpret_cast<StepGuard*>(guard_bytes().data<std::uint8_t>());
  finish_gradients(stream, block, guard, partials, guard_options_);
  update(stream, block);
}

void Optimizer::visit_state(const StateVisitor& visit) const {
  for (const State& state : states_) {
    for (const Parameter& parameter : parameters_->table()) {
      const Tensor bucket = arena_.tensor(state.segments[parameter.bucket]);
      visit(concat(state.name, ".", parameter.name),
            bucket.flat(parameter.offset, parameter.shape.numel()).view(parameter.shape));
    }
  }
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
  return arena_.tensor(states_[id].segments[range.bucket]).flat(range.begin, range.count);
}

}  // namespace llmc
