#pragma once

// What the benchmarks of single ops share: tensors with something in them, and timing that holds on
// a device that runs behind the host.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/core/rng.h"

namespace llmc::bench {

/// Whether sizes are those of a GPU's micro-batch or of a small one.
inline bool on_gpu() {
  return backend_name() != "cpu";
}

/// The dtype that a benchmark's argument "bf16" stands for.
inline DType dtype_of(std::int64_t bf16) {
  return bf16 == 0 ? DType::kF32 : DType::kBF16;
}

/// The tensors of one benchmark.
class Tensors {
 public:
  explicit Tensors(Stream& stream) : stream_(&stream) {}

  /// Normal draws, the same ones over and over.
  Tensor normal(DType dtype, Shape shape) {
    std::vector<float> draws(period(shape));
    Mt19937(1).fill_normal(draws, 0.0f, 1.0f);
    if (dtype == DType::kF32) return repeated(dtype, shape, draws);
    std::vector<bf16> rounded(draws.size());
    std::transform(draws.begin(), draws.end(), rounded.begin(), to_bf16);
    return repeated(dtype, shape, rounded);
  }
  /// i32 draws from [0, limit).
  Tensor integers(Shape shape, std::int32_t limit) {
    std::vector<std::int32_t> draws(period(shape));
    Mt19937 rng(1);
    for (auto& x : draws) {
      x = static_cast<std::int32_t>(rng.next_u32() % static_cast<std::uint32_t>(limit));
    }
    return repeated(DType::kI32, shape, draws);
  }
  Tensor zeros(DType dtype, Shape shape) {
    buffers_.emplace_back(stream_->device(),
                          static_cast<std::size_t>(shape.numel()) * size_of(dtype));
    return {buffers_.back().data(), dtype, shape};
  }
  /// Scratch of an op, which may need none.
  Tensor scratch(std::int64_t bytes) { return bytes == 0 ? Tensor() : zeros(DType::kU8, {bytes}); }

 private:
  static std::size_t period(const Shape& shape) {
    constexpr std::int64_t kMost = 1 << 20;
    return static_cast<std::size_t>(std::min(kMost, shape.numel()));
  }
  template <class T>
  Tensor repeated(DType dtype, Shape shape, const std::vector<T>& values) {
    const Tensor t = zeros(dtype, shape);
    const auto n = static_cast<std::int64_t>(values.size());
    for (std::int64_t at = 0; at < t.numel(); at += n) {
      copy_from_host(*stream_, t.flat(at, std::min(n, t.numel() - at)), values.data());
    }
    return t;
  }

  Stream* stream_;
  std::deque<Buffer> buffers_;
};

/// Times op() in batches of some milliseconds, each of which ends with a wait for the device.
template <class Op>
void time_calls(benchmark::State& state, Stream& stream, const Op& op) {
  using Clock = std::chrono::steady_clock;
  const auto run = [&](std::int64_t calls) {
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) op();
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  run(1);  // what is done at a first call only
  constexpr double kBatchSeconds = 5e-3;
  constexpr double kMostCalls = 1000;
  const auto calls = static_cast<std::int64_t>(std::clamp(kBatchSeconds / run(1), 1.0, kMostCalls));
  while (state.KeepRunningBatch(calls)) run(calls);
}

/// The same for an op that is bound by memory: `bytes` is what a call has to read and write.
template <class Op>
void time_stream(benchmark::State& state, Stream& stream, std::size_t bytes, const Op& op) {
  time_calls(state, stream, op);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

/// The same for an op that is bound by arithmetic: `flops` is its multiplications and additions.
template <class Op>
void time_arithmetic(benchmark::State& state, Stream& stream, double flops, const Op& op) {
  time_calls(state, stream, op);
  state.counters["flops"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace llmc::bench
