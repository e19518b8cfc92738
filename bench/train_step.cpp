// Whole training steps on either backend: tokens a second, the share of the device's peak, device
// memory and the time to the first finished step, on random tokens. The host runs one step ahead,
// as the Trainer does. side_by_side.py sets the result beside PyTorch's.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"

namespace llmc::bench {
namespace {

constexpr const char* kUsage =
    "usage: train_step [options]\n"
    "  --model NAME          preset (gpt2-124M)\n"
    "  --batch N             rows of a micro-batch (64)\n"
    "  --seq-len N           tokens of a row (1024)\n"
    "  --tokens-per-step N   0: one micro-batch (524288)\n"
    "  --precision P         fp32, tf32 or bf16 (bf16)\n"
    "  --recompute LEVEL     none, gelu, gelu+norm or block (none)\n"
    "  --attention KIND      auto, cudnn or own (auto)\n"
    "  --tuning-cache FILE   timed choices of matrix products; empty: none\n"
    "  --no-tuning           take the vendor library's choices\n"
    "  --no-masters          bf16: no fp32 master weights\n"
    "  --seconds X           least time that is measured (10)\n"
    "  --phases              wait after each part of a step and print their times\n"
    "  --json                end with a line of JSON\n";

struct Options {
  std::string model = "gpt2-124M";
  std::int64_t batch = 64;
  std::int64_t seq_len = 1024;
  std::int64_t tokens_per_step = 524288;
  std::string precision = "bf16";
  std::string recompute = "none";
  DeviceOptions device;
  bool masters = true;
  double seconds = 10;
  bool phases = false;
  bool json = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--no-tuning") {
      o.device.tune_matmul = false;
      continue;
    }
    if (name == "--no-masters") {
      o.masters = false;
      continue;
    }
    if (name == "--phases") {
      o.phases = true;
      continue;
    }
    if (name == "--json") {
      o.json = true;
      continue;
    }
    if (i + 1 == argc)
      fail(ErrorKind::kConfig, "bench", "expected a value after ", name, "\n", kUsage);
    const char* value = argv[++i];
    if (name == "--model") {
      o.model = value;
    } else if (name == "--batch") {
      o.batch = std::atoll(value);
    } else if (name == "--seq-len") {
      o.seq_len = std::atoll(value);
    } else if (name == "--tokens-per-step") {
      o.tokens_per_step = std::atoll(value);
    } else if (name == "--precision") {
      o.precision = value;
    } else if (name == "--recompute") {
      o.recompute = value;
    } else if (name == "--attention") {
      o.device.attention = value;
    } else if (name == "--tuning-cache") {
      o.device.tuning_cache = value;
    } else if (name == "--seconds") {
      o.seconds = std::atof(value);
    } else {
      fail(ErrorKind::kConfig, "bench", "unknown option ", name, "\n", kUsage);
    }
  }
  return o;
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Steps of one model on tokens drawn once.
class Steps {
 public:
  Steps(const Device& device, const ModelConfig& config, const Options& o)
      : micro_steps_(o.tokens_per_step == 0 ? 1 : o.tokens_per_step / (o.batch * o.seq_len)),
        nominal_(static_cast<double>(micro_steps_ * o.batch * o.seq_len)),
        model_(device, config,
               {.micro_batch = o.batch,
                .seq_len = o.seq_len,
                .dtype = o.precision == "bf16" ? DType::kBF16 : DType::kF32,
                .recompute = recompute_from_name(o.recompute),
                .tf32 = o.precision == "tf32"}),
        optimizer_(model_.parameters(), {.weight_decay = 0.1f}, {.grad_clip = 1.0f}, o.masters),
        readback_(device, sizeof(StepBlock)) {
    model_.allocate();
    model_.init(42);
    optimizer_.allocate(device);
    optimizer_.start(model_.stream());
    std::mt19937 draws(1);
    std::uniform_int_distribution<std::int32_t> id(
        0, static_cast<std::int32_t>(config.vocab_size - 1));
    for (std::int64_t i = 0; i < micro_steps_; ++i) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(o.batch * o.seq_len + 1));
      for (auto& token : tokens) token = id(draws);
      batches_.push_back(std::move(tokens));
    }
  }

  void queue() {
    const float lr = step_ < 10 ? 1e-5f : 1e-4f;
    model_.begin_step({.lr = lr, .seed = 1, .step = step_++, .nominal_tokens = nominal_},
                      static_cast<int>(micro_steps_));
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
    const auto began = Clock::now();
    part();
    if (!phases_) return;
    model_.stream().synchronize();
    sum += seconds_since(began);
  }

  std::int64_t micro_steps_;
  double nominal_;
  Transformer model_;
  AdamW optimizer_;
  Readback readback_;
  std::vector<std::vector<std::int32_t>> batches_;
  std::int64_t step_ = 0;
  bool phases_ = false;
  double forward_ = 0, backward_ = 0, update_ = 0;
};

void run(const Options& o, Clock::time_point began) {
  const Device device = Device::open(o.device);
  const std::size_t free_at_first = device.free_memory();
  const ModelConfig config = ModelConfig::preset(o.model);
  Steps steps(device, config, o);
  std::printf("%s on %s, B=%d T=%d, %.0f tokens a step, %s, recompute %s\n", o.model.c_str(),
              device.name().c_str(), static_cast<int>(o.batch), static_cast<int>(o.seq_len),
              steps.tokens(), o.precision.c_str(), o.recompute.c_str());
  steps.queue();
  steps.start_readback();
  const StepBlock first = steps.read();
  const double first_step = seconds_since(began);
  std::printf("step 1 | loss %.6f | norm %.4f | %.2f s after start\n", first.loss, first.grad_norm,
              first_step);
  std::fflush(stdout);
  for (int i = 0; i < 2; ++i) steps.queue();
  steps.start_readback();
  steps.read();

  const auto timing = Clock::now();
  int count = 0;
  StepBlock last = first;
  for (double elapsed = 0; elapsed < o.seconds || count < 3; elapsed = seconds_since(timing)) {
    steps.queue();
    if (count > 0) last = steps.read();
    steps.start_readback();
    ++count;
  }
  last = steps.read();
  const double step = seconds_since(timing) / count;
  const double rate = steps.tokens() / step;
  const TransformerOptions& options = steps.model().options();
  const auto peak = device.peak_flops(options.dtype, options.tf32);
  const double mfu = peak ? rate * config.flops_per_token(o.seq_len) / *peak : 0;
  const double planned =
      static_cast<double>(steps.model().arena().bytes() + steps.optimizer().arena().bytes() +
                          steps.model().stream().workspace_bytes());
  const double used = static_cast<double>(free_at_first - device.free_memory());
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
  if (o.json) {
    std::printf(
        "{\"median_ms\": %.3f, \"tokens_per_s\": %.1f, \"mfu\": %.4f, \"first_step_s\": %.3f, "
        "\"peak_memory_bytes\": %.0f, \"device_bytes\": %.0f, \"steps\": %d}\n",
        1e3 * step, rate, mfu, first_step, planned, used, count);
  }
}

}  // namespace
}  // namespace llmc::bench

int main(int argc, char** argv) {
  try {
    llmc::bench::run(llmc::bench::parse(argc, argv), std::chrono::steady_clock::now());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_step: %s\n", error.what());
    return 1;
  }
}
