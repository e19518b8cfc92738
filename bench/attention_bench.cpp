// Times attention of twelve heads, as GPT-2 124M has, and on GPUs also of larger ones: operations
// per second. Part of ops_bench.

#include "llmc/ops/attention.h"

#include <cmath>

#include "ops_bench.h"

namespace llmc::bench {
namespace {

constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kHeadSize = 64;
constexpr std::int64_t kLargerHeads[] = {80, 96, 128};

/// cuDNN's kernels beside the own ones where both may be had.
void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"B", "T", "HS", "bf16", "cudnn"})->UseRealTime();
  for (const std::int64_t bf16 : {0, 1}) {
    for (std::int64_t cudnn = 0; cudnn <= (on_gpu() ? bf16 : 0); ++cudnn) {
      bench->Args({4, 64, kHeadSize, bf16, cudnn});
      bench->Args({on_gpu() ? 64 : 1, 1024, kHeadSize, bf16, cudnn});
      if (!on_gpu() || bf16 == 0) continue;
      for (const std::int64_t size : kLargerHeads) bench->Args({16, 2048, size, bf16, cudnn});
    }
  }
}

Device open(bool cudnn) {
  DeviceOptions options;
  if (on_gpu()) options.attention = cudnn ? "cudnn" : "own";
  return Device::open(options);
}

/// What a benchmark of attention works on.
struct Heads {
  explicit Heads(const benchmark::State& state)
      : batch(state.range(0)),
        length(state.range(1)),
        head_size(state.range(2)),
        scale(1.0f / std::sqrt(static_cast<float>(head_size))),
        dtype(dtype_of(state.range(3))),
        stream(open(state.range(4) != 0)) {}

  /// Multiplications and additions of one T×T product per head, causal half.
  double product_flops() const {
    return static_cast<double>(batch * kHeads * length * length * head_size);
  }

  std::int64_t batch;
  std::int64_t length;
  std::int64_t head_size;
  float scale;
  DType dtype;
  Stream stream;
  Tensors make{stream};
  const Tensor qkv = make.normal(dtype, {batch, length, 3 * kHeads, head_size});
  const Tensor out = make.zeros(dtype, {batch, length, kHeads, head_size});
  const Tensor lse = make.zeros(DType::kF32, {batch, kHeads, length});
};

void attention(benchmark::State& state) {
  Heads h(state);
  time_arithmetic(state, h.stream, 2 * h.product_flops(),
                  [&] { attention_forward(h.stream, h.out, h.lse, h.qkv, kHeads, h.scale); });
}
BENCHMARK(attention)->Apply(sizes);

void attention_gradient(benchmark::State& state) {
  Heads h(state);
  const Tensor dqkv = h.make.zeros(h.dtype, h.qkv.shape());
  const Tensor dout = h.make.normal(h.dtype, h.out.shape());
  const Tensor scratch = h.make.scratch(attention_backward_scratch(
      h.stream, h.dtype, h.batch, h.length, kHeads, kHeads, h.head_size));
  attention_forward(h.stream, h.out, h.lse, h.qkv, kHeads, h.scale);
  time_arithmetic(state, h.stream, 5 * h.product_flops(), [&] {
    attention_backward(h.stream, dqkv, dout, h.qkv, h.out, h.lse, scratch, kHeads, h.scale);
  });
}
BENCHMARK(attention_gradient)->Apply(sizes);

}  // namespace
}  // namespace llmc::bench
