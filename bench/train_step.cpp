// Whole training steps on either backend: tokens a second, the share of the device's peak, device
// memory and the time to the first finished step, on random tokens. The host runs one step ahead,
// as the Trainer does. side_by_side.py sets the result beside PyTorch's.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/model_options.h"
#include "bench/timing.h"
#include "cli/app.h"
#include "cli/options.h"
#include "llmc/core/error.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"

namespace llmc::bench {
namespace {

struct Options {
  ModelOptions model;
  bool no_masters = false;
  double seconds = 10;
  bool phases = false;
};

void add_options(cli::OptionParser& parser, Options& o) {
  TrainConfig& config = o.model.config;
  config.micro_batch = 64;
  config.seq_len = 1024;
  config.tokens_per_step = 524288;
  o.model.add_to(parser, {"seq_len", "tokens_per_step", "recompute"});
  parser.add("batch", config.micro_batch, "Sequences of a micro-batch.", {1, 1e6});
  parser.add_flag("no-masters", o.no_masters, "bf16: no fp32 master weights.");
  parser.add("seconds", o.seconds, "Least time that is measured.", {0, 1e6, true});
  parser.add_flag("phases", o.phases, "Wait after each part of a step and print their times.");
}

/// Steps of one model on tokens drawn once.
class Steps {
 public:
  /// o.model.config: with every value filled in.
  Steps(const Device& device, const ModelConfig& model, const Options& o)
      : nominal_(static_cast<double>(o.model.config.tokens_per_step)),
        model_(device, model,
               {.micro_batch = o.model.config.micro_batch,
                .seq_len = o.model.config.seq_len,
                .dtype = o.model.dtype(),
                .recompute = recompute_from_name(o.model.config.recompute),
                .tf32 = o.model.tf32()}),
        optimizer_(model_.parameters(), {.weight_decay = 0.1f}, {.grad_clip = 1.0f}, !o.no_masters),
        readback_(device, sizeof(StepBlock)) {
    model_.allocate();
    model_.init(42);
    optimizer_.allocate(device);
    optimizer_.start(model_.stream());
    std::mt19937 draws(1);
    std::uniform_int_distribution<std::int32_t> id(0,
                                                   static_cast<std::int32_t>(model.vocab_size - 1));
    const std::int64_t micro_tokens = o.model.config.micro_batch * o.model.config.seq_len;
    for (std::int64_t i = 0; i < o.model.config.tokens_per_step; i += micro_tokens) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(micro_tokens + 1));
      for (auto& token : tokens) token = id(draws);
      batches_.push_back(std::move(tokens));
    }
  }

  void queue() {
    const float lr = step_ < 10 ? 1e-5f : 1e-4f;
    model_.begin_step({.lr = lr, .seed = 1, .step = step_++, .nominal_tokens = nominal_},
                      static_cast<int>(batches_.size()));
    for (const auto& tokens : batches_) {
      const std::span<const std::int32_t> all(tokens);
      timed(forward_, [&] { model_.forward(all.first(all.size() - 1), all.last(all.size() - 1)); });
      timed(backward_, [&] { model_.backward(); });
    }
    timed(update_, [&] { optimizer_.step(model_.stream(), model_.step_block()); });
  }
  void start_readback() { readback_.start(model_.stream(), model_.step_block()); }
  StepBlock read() {
    StepBlock block;
    std::memcpy(&block, readback_.wait(), sizeof block);
    return block;
  }

  double tokens() const { return nominal_; }
  Transformer& model() { return model_; }
  const AdamW& optimizer() const { return optimizer_; }
  /// Waits after each part from now on.
  void time_phases() { phases_ = true; }
  void print_phases(int steps) const {
    std::printf("forward and head %.2f ms, backward %.2f ms, update %.2f ms a step\n",
                1e3 * forward_ / steps, 1e3 * backward_ / steps, 1e3 * update_ / steps);
  }

 private:
  template <class Part>
  void timed(double& sum, const Part& part) {
    const double began = now();
    part();
    if (!phases_) return;
    model_.stream().synchronize();
    sum += now() - began;
  }

  double nominal_;
  Transformer model_;
  AdamW optimizer_;
  Readback readback_;
  std::vector<std::vector<std::int32_t>> batches_;
  std::int64_t step_ = 0;
  bool phases_ = false;
  double forward_ = 0, backward_ = 0, update_ = 0;
};

int run(Options& o, double began) {
  TrainConfig& config = o.model.config;
  const Device device = Device::open(o.model.device_options());
  const auto free_at_first = static_cast<double>(device.free_memory());
  const ModelConfig model = resolve(config, nullptr, nullptr);
  Steps steps(device, model, o);
  std::printf("%s, %d layers of width %d, on %s, B=%d T=%d, %.0f tokens a step, %s, recompute %s\n",
              config.model.c_str(), static_cast<int>(config.n_layer),
              static_cast<int>(config.n_embd), device.name().c_str(),
              static_cast<int>(config.micro_batch), static_cast<int>(config.seq_len),
              steps.tokens(), config.precision.c_str(), config.recompute.c_str());
  steps.queue();
  steps.start_readback();
  const StepBlock first = steps.read();
  const double first_step = now() - began;
  std::printf("step 1 | loss %.6f | norm %.4f | %.2f s after start\n", first.loss, first.grad_norm,
              first_step);
  std::fflush(stdout);
  for (int i = 0; i < 2; ++i) steps.queue();
  steps.start_readback();
  steps.read();

  const double timing = now();
  int count = 0;
  StepBlock last = first;
  for (double elapsed = 0; elapsed < o.seconds || count < 3; elapsed = now() - timing) {
    steps.queue();
    if (count > 0) last = steps.read();
    steps.start_readback();
    ++count;
  }
  last = steps.read();
  const double step = (now() - timing) / count;
  const double rate = steps.tokens() / step;
  const TransformerOptions& options = steps.model().options();
  const auto peak = device.peak_flops(options.dtype, options.tf32);
  const double mfu = peak ? rate * model.flops_per_token(config.seq_len) / *peak : 0;
  const double planned =
      static_cast<double>(steps.model().arena().bytes() + steps.optimizer().arena().bytes() +
                          steps.model().stream().workspace_bytes());
  const double used = free_at_first - static_cast<double>(device.free_memory());
  std::printf(
      "%d steps: %.2f ms a step, %.0f tok/s, MFU %s, planned %.2f GiB, device gave %.2f "
      "GiB, last loss %.4f\n",
      count, 1e3 * step, rate, peak ? concat(std::round(1000 * mfu) / 10, "%").c_str() : "n/a",
      planned / 0x1p30, used / 0x1p30, last.loss);
  if (o.phases) {
    steps.time_phases();
    for (int i = 0; i < 3; ++i) steps.queue();
    steps.print_phases(3);
  }
  if (o.model.json) {
    std::printf(
        "{\"median_ms\": %.3f, \"tokens_per_s\": %.1f, \"mfu\": %.4f, \"first_step_s\": %.3f, "
        "\"peak_memory_bytes\": %.0f, \"device_bytes\": %.0f, \"steps\": %d}\n",
        1e3 * step, rate, mfu, first_step, planned, used, count);
  }
  return cli::kDone;
}

cli::Work prepare(int argc, char** argv) {
  const double began = now();
  Options options;
  cli::OptionParser parser("train_step", "Times training steps on random tokens.");
  add_options(parser, options);
  if (!parser.parse(argc, argv)) return {};
  return [options, began]() mutable { return run(options, began); };
}

}  // namespace
}  // namespace llmc::bench

int main(int argc, char** argv) {
  return llmc::cli::run_app("train_step", argv, [&] { return llmc::bench::prepare(argc, argv); });
}
