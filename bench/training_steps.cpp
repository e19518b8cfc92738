#include "bench/training_steps.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "bench/timing.h"
#include "train/ranks.h"

namespace llmc::bench {
namespace {

TransformerOptions model_options(const ModelOptions& options, int ranks) {
  return {.micro_batch = options.config.micro_batch,
          .seq_len = options.config.seq_len,
          .dtype = options.dtype(),
          .recompute = recompute_from_name(options.config.recompute),
          .ranks = ranks,
          .tf32 = options.tf32()};
}

std::vector<std::int32_t> draw(std::mt19937& draws, std::int64_t count, std::int64_t vocab_size) {
  std::uniform_int_distribution<std::int32_t> id(0, static_cast<std::int32_t>(vocab_size - 1));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = id(draws);
  return tokens;
}

}  // namespace

TrainingSteps::TrainingSteps(const Device& device, ProcessGroup& group, Communicator* comm,
                             const ModelConfig& model, const ModelOptions& options)
    : group_(group),
      config_(options.config),
      tokens_per_step_(static_cast<double>(config_.tokens_per_step)),
      model_(device, model, model_options(options, group.size())),
      readback_(device, sizeof(StepBlock)) {
  model_.allocate();
  model_.init(42);
  const std::int64_t micro_tokens = config_.micro_batch * config_.seq_len;
  const std::int64_t micro_steps = config_.tokens_per_step / (micro_tokens * group.size());
  std::mt19937 draws(1 + static_cast<unsigned>(group.rank()));
  for (std::int64_t i = 0; i < micro_steps; ++i) {
    batches_.push_back(draw(draws, micro_tokens + 1, model.vocab_size));
  }
  // As the Trainer does, before anything is exchanged: beside an exchange, others could seem
  // faster.
  if (comm) llmc::share_products(*comm, model_, config_.micro_batch, config_.seq_len, micro_steps);
}

void TrainingSteps::start_optimizer(Communicator* comm, ExchangeTime when) {
  Stream& stream = model_.stream();
  if (optimizer_) {
    optimizer_->need_parameters(stream);
    stream.synchronize();
    optimizer_.reset();
  }
  const Sharing sharing{comm, static_cast<int>(config_.zero_stage),
                        config_.reduce_dtype == "bf16" ? DType::kBF16 : DType::kF32};
  optimizer_.emplace(model_.parameters(), AdamWOptions{.weight_decay = 0.1f},
                     GuardOptions{.grad_clip = 1.0f}, config_.master_weights, sharing);
  optimizer_->allocate(stream.device());
  optimizer_->start(stream);
  optimizer_->on_wait([this](Stream& s) { mark_wait(s); });
  if (when == ExchangeTime::kBesidePasses) {
    optimizer_->attach(model_);
  } else {
    // A model with hooks launches its passes op by op, where it could else replay them as CUDA
    // graphs. With hooks that do nothing, both times of exchange launch the same.
    model_.on_bucket_ready([](std::size_t) {});
    model_.on_bucket_needed([](std::size_t) {});
  }
}

template <class Part>
void TrainingSteps::timed(double Phases::*sum, const Part& part) {
  const double began = now();
  part();
  if (!phases_) return;
  model_.stream().synchronize();
  (*phases_).*sum += now() - began;
}

void TrainingSteps::mark_wait(Stream& stream) {
  Waits& waits = waits_[step_ % 2];
  if (waits.used == waits.marks.size()) waits.marks.emplace_back(stream.device());
  waits.marks[waits.used++].record(stream);
}

double TrainingSteps::waited(std::int64_t step) const {
  const Waits& waits = waits_[step % 2];
  double sum = 0;
  for (std::size_t i = 0; i < waits.used; i += 2) sum += waits.marks[i + 1].since(waits.marks[i]);
  return sum;
}

void TrainingSteps::queue() {
  waits_[step_ % 2].used = 0;
  const float lr = step_ < 10 ? 1e-5f : 1e-4f;
  model_.begin_step({.lr = lr, .seed = 1, .step = step_, .nominal_tokens = tokens_per_step_},
                    static_cast<int>(batches_.size()));
  for (const auto& tokens : batches_) {
    const std::span<const std::int32_t> all(tokens);
    timed(&Phases::forward,
          [&] { model_.forward(all.first(all.size() - 1), all.last(all.size() - 1)); });
    timed(&Phases::backward, [&] { model_.backward(); });
  }
  timed(&Phases::update, [&] { optimizer_->step(model_.stream(), model_.step_block()); });
  ++step_;
}

void TrainingSteps::Taken::append(const Taken& more) {
  seconds.insert(seconds.end(), more.seconds.begin(), more.seconds.end());
  waited.insert(waited.end(), more.waited.begin(), more.waited.end());
}

TrainingSteps::Taken TrainingSteps::take(std::int64_t count) {
  Taken taken;
  const std::int64_t first = step_;
  double began = now();
  for (std::int64_t queued = 0; queued <= count; ++queued) {
    if (queued < count) queue();
    if (queued > 0) {
      std::memcpy(&last_, readback_.wait(), sizeof last_);
      const double ended = now();
      taken.seconds.push_back(ended - began);
      taken.waited.push_back(waited(first + queued - 1));
      began = ended;
    }
    if (queued < count) readback_.start(model_.stream(), model_.step_block());
  }
  return taken;
}

TrainingSteps::Taken TrainingSteps::measure(double seconds) {
  Taken all;
  std::int64_t count = 3;
  while (count > 0) {
    all.append(take(count));
    const double sum = std::accumulate(all.seconds.begin(), all.seconds.end(), 0.0);
    const double steps = static_cast<double>(all.seconds.size());
    const double missing = std::max(0.0, seconds - sum) / sum * steps;
    count = std::stoll(group_.share(std::to_string(std::llround(std::ceil(missing)))));
  }
  return all;
}

TrainingSteps::Phases TrainingSteps::measure_phases(int count) {
  phases_.emplace();
  for (int i = 0; i < count; ++i) queue();
  const Phases sums = *phases_;
  phases_.reset();
  return {sums.forward / count, sums.backward / count, sums.update / count};
}

}  // namespace llmc::bench
