#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/peers.h"
#include "llmc/core/error.h"
#include "llmc/ops/linear.h"

namespace llmc::bench {
namespace {

struct Options {
  int threads = 0;
  std::string isa = "auto";
  int repeats = 9;
  bool peers = true;
  std::string only;
};

struct GemmShape {
  const char* use;
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
};

// The products of GPT-2 124M with 256 tokens: forward, input gradient, weight gradient.
const GemmShape kShapes[] = {
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

void bench_gemm(const Options& options, const Device& device) {
  Stream stream(device);
  const std::vector<Peer> peers =
      options.peers ? load_peers(device.threads()) : std::vector<Peer>();
  std::printf("%-14s %7s", "product", "peak");
  std::printf("  %16s", "llmc");
  for (const Peer& peer : peers) std::printf("  %16s", peer.name.c_str());
  std::printf("   GFLOP/s (best: fraction of peak)\n");
  for (const GemmShape& s : kShapes) {
    const Buffer a = random_matrix(device, s.m * s.k), b = random_matrix(device, s.k * s.n);
    const Buffer c(device, static_cast<std::size_t>(s.m * s.n) * sizeof(float));
    const Tensor ta(a.data(), DType::kF32, s.transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k});
    const Tensor tb(b.data(), DType::kF32, s.transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n});
    const Tensor tc(c.data(), DType::kF32, {s.m, s.n});
    const double flops =
        2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    std::vector<std::vector<double>> rates(peers.size() + 2);
    for (int r = 0; r < options.repeats; ++r) {
      rates[0].push_back(fma_rate(stream));
      double start = now();
      matmul(stream, tc, ta, tb, {.transpose_a = s.transpose_a, .transpose_b = s.transpose_b});
      rates[1].push_back(flops / (now() - start));
      for (std::size_t p = 0; p < peers.size(); ++p) {
        start = now();
        peers[p].matmul(static_cast<float*>(c.data()), static_cast<const float*>(a.data()),
                        s.transpose_a, static_cast<const float*>(b.data()), s.transpose_b, s.m, s.n,
                        s.k);
        rates[p + 2].push_back(flops / (now() - start));
      }
    }
    std::printf("%-14s %7.1f", s.use, median(rates[0]) * 1e-9);
    double peak = 0;
    for (double x : rates[0]) peak = std::max(peak, x);
    for (std::size_t p = 1; p < rates.size(); ++p) {
      double best = 0;
      for (double x : rates[p]) best = std::max(best, x);
      std::printf("  %6.1f %3.0f%% (%2.0f%%)", median(rates[p]) * 1e-9,
                  100 * median(rates[p]) / median(rates[0]), 100 * best / peak);
    }
    std::printf("\n");
  }
}

int run(const Options& options) {
  const Device device = Device::open({.threads = options.threads, .isa = options.isa});
  std::printf("%s\n", device.name().c_str());
  bench_gemm(options, device);
  return 0;
}

}  // namespace
}  // namespace llmc::bench

int main(int argc, char** argv) {
  llmc::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const auto value = [&]() { return i + 1 < argc ? argv[++i] : ""; };
    if (!std::strcmp(argv[i], "--threads")) options.threads = std::atoi(value());
    if (!std::strcmp(argv[i], "--isa")) options.isa = value();
    if (!std::strcmp(argv[i], "--repeats")) options.repeats = std::atoi(value());
    if (!std::strcmp(argv[i], "--no-peers")) options.peers = false;
  }
  return llmc::bench::run(options);
}
