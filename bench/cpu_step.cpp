// Compares this machine's measured limits with what the library makes of them: matrix products of a
// GPT-2 as a fraction of the multiply-add peak, beside other libraries, and whole training steps
// beside the time that products at the peak and parameters at copy bandwidth would take.
//
// Everything that is compared is measured in turn, so that a machine whose speed drifts slows both
// sides alike.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "bench/machine.h"
#include "bench/peers.h"
#include "bench/timing.h"
#include "cli/options.h"
#include "llmc/core/error.h"
#include "llmc/nn/transformer.h"
#include "llmc/ops/linear.h"
#include "llmc/optim/adamw.h"

namespace llmc::bench {
namespace {

struct Options {
  TrainConfig config;
  std::int64_t repeats = 9;
  std::int64_t steps = 10;
  std::string only;
  bool no_peers = false;
  bool json = false;

  Options() {
    config.model = "gpt2-124M";
    config.micro_batch = 4;
    config.seq_len = 64;
  }
  bool wants(std::string_view part) const { return only.empty() || only == part; }
  Device device() const {
    return Device::open({.threads = static_cast<int>(config.threads), .isa = config.isa});
  }
};

/// False when --help was asked for and answered.
bool parse(Options& options, int argc, char** argv) {
  const ConfigRange count{1, 1e6};
  cli::OptionParser parser("cpu_step",
                           "Products and training steps beside what this machine can do.");
  parser.add_config_options(options.config, {"model", "threads", "isa"});
  parser.add("batch", options.config.micro_batch, "Sequences of a step.", count);
  parser.add("seq-len", options.config.seq_len, "Length of a sequence.", count);
  parser.add("repeats", options.repeats, "Timings of each product.", count);
  parser.add("steps", options.steps, "Timed training steps.", count);
  parser.add("only", options.only, "Leave the other parts out.", {"machine", "gemm", "step"});
  parser.add_flag("no-peers", options.no_peers, "Leave oneDNN and OpenBLAS out.");
  parser.add_flag("json", options.json, "End with a line of JSON about the steps.");
  return parser.parse(argc, argv);
}

double best(const std::vector<double>& rates) {
  return *std::max_element(rates.begin(), rates.end());
}

// ---------------------------------------------------------------------------------- the machine

void print_machine(const Options& options) {
  std::printf("multiply-add peak, GFLOP/s, median and best of %d:\n",
              static_cast<int>(options.repeats));
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    try {
      Stream stream(
          Device::open({.threads = static_cast<int>(options.config.threads), .isa = isa}));
      std::vector<double> rates;
      for (std::int64_t i = 0; i < options.repeats; ++i) rates.push_back(fma_rate(stream));
      std::printf("  %-9s %7.1f %7.1f\n", isa, 1e-9 * median(rates), 1e-9 * best(rates));
    } catch (const Error& error) {
      std::printf("  %-9s not on this processor\n", isa);
    }
  }
  const Device device = options.device();
  Stream stream(device);
  const CopyProbe copy(device);
  std::vector<double> rates;
  for (std::int64_t i = 0; i < options.repeats; ++i) rates.push_back(copy.rate(stream));
  std::printf("copy (read + written), GB/s: %.1f, best %.1f\n", 1e-9 * median(rates),
              1e-9 * best(rates));
}

// ----------------------------------------------------------------------------- matrix products

struct Product {
  const char* use;
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

// The products of GPT-2 124M over 256 tokens. fwd: in · weightᵀ; dX: dout · weight; dW: doutᵀ · in.
const Product kProducts[] = {
    {"qkv fwd", 256, 2304, 768, false, true},    {"qkv dX", 256, 768, 2304, false, false},
    {"qkv dW", 2304, 768, 256, true, false},     {"proj fwd", 256, 768, 768, false, true},
    {"proj dX", 256, 768, 768, false, false},    {"proj dW", 768, 768, 256, true, false},
    {"fc fwd", 256, 3072, 768, false, true},     {"fc dX", 256, 768, 3072, false, false},
    {"fc dW", 3072, 768, 256, true, false},      {"fcproj fwd", 256, 768, 3072, false, true},
    {"fcproj dX", 256, 3072, 768, false, false}, {"fcproj dW", 768, 3072, 256, true, false},
    {"head fwd", 256, 50304, 768, false, true},  {"head dX", 256, 768, 50304, false, false},
    {"head dW", 50304, 768, 256, true, false},   {"head fwd odd", 256, 50257, 768, false, true},
};

Buffer random_matrix(const Device& device, std::int64_t count) {
  Buffer buffer(device, static_cast<std::size_t>(count) * sizeof(float));
  auto* p = static_cast<float*>(buffer.data());
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    p[i] = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  return buffer;
}

/// Rates of the peak, of llmc and of each peer, taken in turn `repeats` times.
std::vector<std::vector<double>> time_product(Stream& stream, const Product& product,
                                              const std::vector<Peer>& peers,
                                              std::int64_t repeats) {
  const auto& [use, m, n, k, transpose_a, transpose_b] = product;
  const Device& device = stream.device();
  const Buffer a = random_matrix(device, m * k), b = random_matrix(device, k * n);
  const Buffer c(device, static_cast<std::size_t>(m * n) * sizeof(float));
  const Tensor a_view(a.data(), DType::kF32, transpose_a ? Shape{k, m} : Shape{m, k});
  const Tensor b_view(b.data(), DType::kF32, transpose_b ? Shape{n, k} : Shape{k, n});
  const Tensor c_view(c.data(), DType::kF32, {m, n});
  std::vector<std::vector<double>> rates(peers.size() + 2);
  for (std::int64_t r = 0; r < repeats; ++r) {
    rates[0].push_back(fma_rate(stream));
    double start = now();
    matmul(stream, c_view, a_view, b_view,
           {.transpose_a = transpose_a, .transpose_b = transpose_b});
    rates[1].push_back(product.flops() / (now() - start));
    for (std::size_t p = 0; p < peers.size(); ++p) {
      start = now();
      peers[p].matmul(static_cast<float*>(c.data()), static_cast<const float*>(a.data()),
                      transpose_a, static_cast<const float*>(b.data()), transpose_b, m, n, k);
      rates[p + 2].push_back(product.flops() / (now() - start));
    }
  }
  return rates;
}

void print_products(const Options& options, const Device& device) {
  Stream stream(device);
  const std::vector<Peer> peers =
      options.no_peers ? std::vector<Peer>{} : load_peers(device.threads());
  std::printf("matrix products, GFLOP/s: medians of %d, in brackets the best, %% of the peak\n",
              static_cast<int>(options.repeats));
  std::printf("%-13s %6s %6s %6s %7s  %-18s", "", "m", "n", "k", "peak", "llmc");
  for (const Peer& peer : peers) std::printf("  %-18s", peer.name.c_str());
  std::printf("\n");
  std::vector<double> seconds(peers.size() + 2, 0.0);  // of all products, at the median rates
  for (const Product& product : kProducts) {
    const auto rates = time_product(stream, product, peers, options.repeats);
    const double peak = median(rates[0]), best_peak = best(rates[0]);
    std::printf("%-13s %6d %6d %6d %7.1f", product.use, static_cast<int>(product.m),
                static_cast<int>(product.n), static_cast<int>(product.k), 1e-9 * peak);
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const double rate = median(rates[i]);
      seconds[i] += product.flops() / rate;
      if (i > 0) {
        std::printf("  %6.1f %3.0f%% (%3.0f%%)", 1e-9 * rate, 100 * rate / peak,
                    100 * best(rates[i]) / best_peak);
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  std::printf("%-13s %28s", "all", "");
  for (std::size_t i = 1; i < seconds.size(); ++i) {
    std::printf("         %3.0f%%       ", 100 * seconds[0] / seconds[i]);
  }
  std::printf("\n");
}

// ------------------------------------------------------------------------------ training steps

void print_steps(const Options& options, const Device& device) {
  const std::int64_t batch = options.config.micro_batch, seq_len = options.config.seq_len;
  const ModelConfig config = ModelConfig::preset(options.config.model);
  Transformer model(device, config, {.micro_batch = batch, .seq_len = seq_len});
  model.allocate();
  model.init(42);
  AdamW optimizer(model.parameters(), {});
  optimizer.allocate(device);
  optimizer.start(model.stream());
  const std::int64_t tokens = batch * seq_len;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(config.vocab_size));
  }
  const std::vector<std::int32_t> targets(ids.rbegin(), ids.rend());
  const CopyProbe copy(device);

  std::vector<double> peaks, copies, forwards, backwards, updates, steps;
  for (std::int64_t i = 0; i < options.steps + 2; ++i) {
    peaks.push_back(fma_rate(model.stream()));
    copies.push_back(copy.rate(model.stream()));
    const double t0 = now();
    model.begin_step({.lr = 1e-4f, .seed = 1, .step = i, .nominal_tokens = double(tokens)});
    model.forward(ids, targets);
    const double t1 = now();
    model.backward();
    const double t2 = now();
    optimizer.step(model.stream(), model.step_block());
    const double t3 = now();
    if (i < 2) continue;  // first touch of memory
    forwards.push_back(t1 - t0);
    backwards.push_back(t2 - t1);
    updates.push_back(t3 - t2);
    steps.push_back(t3 - t0);
  }

  const double matrix_elements = static_cast<double>(
      config.n_layer * (4 * config.n_embd * config.n_embd + 2 * config.n_embd * config.ffn_size) +
      config.padded_vocab_size() * config.n_embd);
  const double flops = 6.0 * static_cast<double>(tokens) * matrix_elements;
  const double bytes = 32.0 * static_cast<double>(config.num_parameters());
  const double gemm_time = flops / median(peaks), copy_time = bytes / median(copies);
  const double step = median(steps);
  const double fastest = *std::min_element(steps.begin(), steps.end());
  std::printf("training step of %s, B=%d T=%d, medians of %d\n", options.config.model.c_str(),
              static_cast<int>(batch), static_cast<int>(seq_len), static_cast<int>(options.steps));
  std::printf("  peak %.1f GFLOP/s, copy %.1f GB/s\n", 1e-9 * median(peaks), 1e-9 * median(copies));
  std::printf("  step %.1f ms (fastest %.1f): forward and head %.1f, backward %.1f, update %.1f\n",
              1e3 * step, 1e3 * fastest, 1e3 * median(forwards), 1e3 * median(backwards),
              1e3 * median(updates));
  std::printf(
      "  bound %.1f ms: %.1f GFLOP of products at the peak %.1f, 32 bytes a parameter at "
      "copy bandwidth %.1f\n",
      1e3 * (gemm_time + copy_time), 1e-9 * flops, 1e3 * gemm_time, 1e3 * copy_time);
  std::printf("  step / bound %.2f (fastest step / bound of the best rates %.2f)\n",
              step / (gemm_time + copy_time),
              fastest / (flops / best(peaks) + bytes / best(copies)));
  if (options.json) {
    std::printf(
        "{\"median_ms\": %.3f, \"min_ms\": %.3f, \"bound_ms\": %.3f, "
        "\"tokens_per_s\": %.1f}\n",
        1e3 * step, 1e3 * fastest, 1e3 * (gemm_time + copy_time),
        static_cast<double>(tokens) / step);
  }
}

void run(const Options& options) {
  const Device device = options.device();
  std::printf("%s\n", device.name().c_str());
  if (options.wants("machine")) print_machine(options);
  if (options.wants("gemm")) print_products(options, device);
  if (options.wants("step")) print_steps(options, device);
}

}  // namespace
}  // namespace llmc::bench

int main(int argc, char** argv) {
  try {
    llmc::bench::Options options;
    if (llmc::bench::parse(options, argc, argv)) llmc::bench::run(options);
  } catch (const llmc::Error& error) {
    std::fprintf(stderr, "cpu_step: %s\n", error.what());
    return error.kind() == llmc::ErrorKind::kConfig ? 2 : 1;
  }
}
