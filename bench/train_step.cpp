// Whole training steps on either backend, of one process or of all that were started together:
// tokens a second, the share of the devices' peak, memory and the time to the first finished step,
// on random tokens; and how much of the exchange between processes goes on beside the passes.
// side_by_side.py sets the result beside PyTorch's.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "bench/exchange_times.h"
#include "bench/model_options.h"
#include "bench/timing.h"
#include "bench/training_steps.h"
#include "cli/app.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "llmc/core/error.h"

namespace llmc::bench {
namespace {

struct Options {
  ModelOptions model;
  bool no_masters = false;
  double seconds = 10;
  bool phases = false;
  bool exchange = false;
};

bool parse(Options& o, int argc, char** argv) {
  TrainConfig& config = o.model.config;
  config.micro_batch = 64;
  config.seq_len = 1024;
  config.tokens_per_step = 524288;
  cli::OptionParser parser("train_step", "Times training steps on random tokens.");
  o.model.add_to(parser, {"seq_len", "tokens_per_step", "recompute", "zero_stage", "reduce_dtype",
                          "comm_transport"});
  parser.add("batch", config.micro_batch, "Sequences of a micro-batch.", {1, 1e6});
  parser.add_flag("no-masters", o.no_masters, "bf16: no fp32 master weights.");
  parser.add("seconds", o.seconds, "Least time of each measurement.", {0, 1e6, true});
  parser.add_flag("phases", o.phases, "Wait after each part of a step and print their times.");
  parser.add_flag("exchange", o.exchange,
                  "Several processes: also time steps that exchange nothing and steps that "
                  "exchange after the passes, and print how much the passes hide.");
  if (!parser.parse(argc, argv)) return false;
  config.master_weights = !o.no_masters;
  return true;
}

/// What all ranks together reach, and what one of them needs.
struct Result {
  StepBlock first;
  double first_step_s = 0;
  std::int64_t steps = 0;
  double mean_s = 0, median_s = 0;
  double tokens_per_s = 0;
  std::optional<double> mfu;
  double planned_bytes = 0;
  std::optional<double> device_bytes;  ///< on GPUs: by which the free memory shrank
};

void print_start(const Options& o, const ModelConfig& model, const Device& device, int ranks) {
  const TrainConfig& config = o.model.config;
  std::printf("%.1f M parameters, L=%d C=%d, on %s, ",
              1e-6 * static_cast<double>(model.num_parameters()), static_cast<int>(model.n_layer),
              static_cast<int>(model.n_embd), device.name().c_str());
  if (ranks > 1) {
    std::printf("%d ranks, zero_stage %d, gradients exchanged in %s, ", ranks,
                static_cast<int>(config.zero_stage), config.reduce_dtype.c_str());
  }
  std::printf("B=%d T=%d, %d tokens a step, %s, recompute %s\n",
              static_cast<int>(config.micro_batch), static_cast<int>(config.seq_len),
              static_cast<int>(config.tokens_per_step), config.precision.c_str(),
              config.recompute.c_str());
}

void print_first_step(const Result& result) {
  std::printf("step 1 | loss %.6f | norm %.4f | %.2f s after start\n", result.first.loss,
              result.first.grad_norm, result.first_step_s);
  std::fflush(stdout);
}

void print_steps(const Result& result, const StepBlock& last, int ranks) {
  const std::string mfu =
      result.mfu ? concat(std::round(1000 * *result.mfu) / 10, "%") : std::string("n/a");
  std::printf("%d steps: %.2f ms a step, %.0f tok/s, MFU %s, last loss %.4f, %splanned %.2f GiB",
              static_cast<int>(result.steps), 1e3 * result.mean_s, result.tokens_per_s, mfu.c_str(),
              last.loss, ranks > 1 ? "each rank: " : "", result.planned_bytes / 0x1p30);
  if (result.device_bytes) std::printf(", device gave %.2f GiB", *result.device_bytes / 0x1p30);
  std::printf("\n");
  std::fflush(stdout);
}

void print_exchange(const ExchangeTimes& times) {
  const auto print = [](const char* when, const ExchangeTimes::Step& step) {
    std::printf("%s %.3f ms, of them %.3f ms of waits", when, 1e3 * step.seconds,
                1e3 * step.waited);
  };
  std::printf("exchange, medians of %d other steps or more: ", static_cast<int>(times.steps));
  print("alone", times.alone);
  print("; after the passes", times.after);
  print("; beside them", times.beside);
  std::printf("\n");
  std::printf("each rank sends %.1f MB a step", 1e-6 * times.bytes);
  if (times.taken() <= 0) {
    std::printf(" in less time than could be told from none\n");
    return;
  }
  std::printf(
      " in %.3f ms (bus bandwidth %.2f GB/s); beside the passes, a step waits for %.3f ms of it "
      "(%.1f%% hidden), and these take %.3f ms %s\n",
      1e3 * times.taken(), 1e-9 * times.bytes / times.taken(), 1e3 * times.shown(),
      100 * times.hidden_share(), 1e3 * std::abs(times.slowed()),
      times.slowed() < 0 ? "less" : "more");
}

void print_json(const Result& result, const std::optional<ExchangeTimes>& times, int ranks) {
  std::printf(
      "{\"median_ms\": %.3f, \"tokens_per_s\": %.1f, \"mfu\": %.4f, "
      "\"first_step_s\": %.3f, \"peak_memory_bytes\": %.0f, "
      "\"steps\": %d, \"ranks\": %d",
      1e3 * result.median_s, result.tokens_per_s, result.mfu.value_or(0), result.first_step_s,
      result.planned_bytes, static_cast<int>(result.steps), ranks);
  if (result.device_bytes) std::printf(", \"device_bytes\": %.0f", *result.device_bytes);
  if (times) {
    std::printf(
        ", \"alone_ms\": %.4f, \"after_ms\": %.4f, \"beside_ms\": %.4f, "
        "\"alone_waits_ms\": %.4f, \"after_waits_ms\": %.4f, \"beside_waits_ms\": %.4f, "
        "\"exchanged_bytes\": %.0f",
        1e3 * times->alone.seconds, 1e3 * times->after.seconds, 1e3 * times->beside.seconds,
        1e3 * times->alone.waited, 1e3 * times->after.waited, 1e3 * times->beside.waited,
        times->bytes);
  }
  std::printf("}\n");
}

void measure(Result& result, TrainingSteps& steps, const Options& o) {
  const std::vector<double> seconds = steps.measure(o.seconds).seconds;
  result.steps = std::ssize(seconds);
  result.mean_s =
      std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(result.steps);
  result.median_s = median(seconds);
  result.tokens_per_s = steps.tokens_per_step() / result.mean_s;
  const Transformer& model = steps.model();
  const Device& device = model.stream().device();
  if (const auto peak = device.peak_flops(o.model.dtype(), o.model.tf32())) {
    result.mfu = result.tokens_per_s * model.config().flops_per_token(model.options().seq_len) /
                 (model.options().ranks * *peak);
  }
  const Communicator* const comm = steps.optimizer().sharing().comm;
  result.planned_bytes = static_cast<double>(
      model.arena().bytes() + steps.optimizer().arena().bytes() + model.stream().workspace_bytes() +
      (comm != nullptr ? comm->memory_bytes() : 0));
}

void run(Options o, const std::shared_ptr<ProcessGroup>& group, double began) {
  const int ranks = group->size();
  const bool prints = group->rank() == 0;
  if (o.exchange && ranks == 1) {
    fail(ErrorKind::kConfig, "bench", "--exchange: expected several processes, got one");
  }
  const ModelConfig model = resolve(o.model.config, nullptr, nullptr, ranks);
  const RankPlace place = cli::place_of(*group);
  const Device device = Device::open(o.model.device_options(place));
  const auto free_at_first = static_cast<double>(device.free_memory());
  std::unique_ptr<Communicator> comm;
  if (ranks > 1) comm = Communicator::open(device, group);

  TrainingSteps steps(device, *group, comm.get(), model, o.model);
  steps.start_optimizer(comm.get(), ExchangeTime::kBesidePasses);
  if (prints) print_start(o, model, device, ranks);
  Result result;
  steps.take(1);
  result.first = steps.last();
  result.first_step_s = now() - began;
  if (prints) print_first_step(result);
  steps.take(2);

  measure(result, steps, o);
  if (backend_name() != "cpu") {
    result.device_bytes = free_at_first - static_cast<double>(device.free_memory());
  }
  if (prints) print_steps(result, steps.last(), ranks);

  if (o.phases) {
    const TrainingSteps::Phases phases = steps.measure_phases(3);
    if (prints) {
      std::printf("forward and head %.2f ms, backward %.2f ms, update %.2f ms a step\n",
                  1e3 * phases.forward, 1e3 * phases.backward, 1e3 * phases.update);
    }
  }
  std::optional<ExchangeTimes> times;
  if (o.exchange) times = time_exchange(steps, *group, *comm, o.seconds);
  if (prints && times) print_exchange(*times);
  if (prints && o.model.json) print_json(result, times, ranks);
}

cli::Work prepare(int argc, char** argv) {
  const double began = now();
  Options options;
  if (!parse(options, argc, argv)) return {};
  const std::shared_ptr<ProcessGroup> group =
      cli::join("train_step", start_up_options(options.model.config));
  cli::log_as_one("train_step", *group);
  return [options, group, began] {
    try {
      run(options, group, began);
    } catch (const std::exception& error) {
      group->give_up(error);
      throw;
    }
    return cli::kDone;
  };
}

}  // namespace
}  // namespace llmc::bench

int main(int argc, char** argv) {
  return llmc::cli::run_app("train_step", argv, [&] { return llmc::bench::prepare(argc, argv); });
}
