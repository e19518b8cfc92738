// Times single ops at the sizes of GPT-2 124M: bytes per second for those that stream memory, to be
// compared with "copy" in the same run, and operations per second for attention.
//
//   ops_bench [--benchmark_filter=REGEX]      (threads: OMP_NUM_THREADS)

#include <benchmark/benchmark.h>

#include <cmath>
#include <deque>
#include <vector>

#include "llmc/core/rng.h"
#include "llmc/ops/activation.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/attention.h"
#include "llmc/ops/embedding.h"
#include "llmc/ops/layernorm.h"
#include "llmc/ops/loss.h"

namespace llmc::bench {
namespace {

/// The tensors of one benchmark, filled with normal draws.
class Tensors {
 public:
  explicit Tensors(Stream& stream) : stream_(&stream) {}

  Tensor f32(Shape shape) {
    const Tensor t = make(DType::kF32, shape);
    std::vector<float> values(static_cast<std::size_t>(t.numel()));
    Mt19937(1).fill_normal(values, 0.0f, 1.0f);
    copy_from_host(*stream_, t, values.data());
    return t;
  }
  Tensor i32(Shape shape, int limit) {
    const Tensor t = make(DType::kI32, shape);
    std::vector<std::int32_t> values(static_cast<std::size_t>(t.numel()));
    Mt19937 rng(1);
    for (auto& v : values) {
      v = static_cast<std::int32_t>(rng.next_u32() % static_cast<std::uint32_t>(limit));
    }
    copy_from_host(*stream_, t, values.data());
    return t;
  }
  Tensor u8(std::int64_t bytes) { return make(DType::kU8, {bytes}); }

 private:
  Tensor make(DType dtype, Shape shape) {
    buffers_.emplace_back(stream_->device(),
                          static_cast<std::size_t>(shape.numel()) * size_of(dtype));
    return {buffers_.back().data(), dtype, shape};
  }
  Stream* stream_;
  std::deque<Buffer> buffers_;
};

constexpr std::int64_t kTokens = 256;
constexpr std::int64_t kC = 768;
constexpr std::int64_t kV = 50257;
constexpr std::int64_t kVp = 50304;
constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kHeadSize = 64;
constexpr float kEps = 1e-5f;

/// Runs op() again and again; `floats` is what one run reads and writes.
template <class Op>
void time_stream(benchmark::State& state, std::int64_t floats, const Op& op) {
  for (auto _ : state) op();
  state.SetBytesProcessed(state.iterations() * floats * 4);
}

void copy_memory(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const std::int64_t n = state.range(0);
  const Tensor a = make.f32({n}), b = make.f32({n});
  time_stream(state, 2 * n, [&] { copy(stream, a, b); });
}
BENCHMARK(copy_memory)->Arg(kTokens* kC)->Arg(16 << 20)->UseRealTime();

void gelu(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const std::int64_t n = kTokens * 4 * kC;
  const Tensor a = make.f32({n}), b = make.f32({n});
  time_stream(state, 2 * n, [&] { gelu_forward(stream, a, b); });
}
BENCHMARK(gelu)->UseRealTime();

void gelu_gradient(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const std::int64_t n = kTokens * 4 * kC;
  const Tensor a = make.f32({n}), b = make.f32({n}), c = make.f32({n});
  time_stream(state, 3 * n, [&] { gelu_backward(stream, a, b, c); });
}
BENCHMARK(gelu_gradient)->UseRealTime();

void residual_layernorm(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const Shape x{kTokens, kC};
  const Tensor sum = make.f32(x), out = make.f32(x), a = make.f32(x), b = make.f32(x);
  const Tensor mean = make.f32({kTokens}), rstd = make.f32({kTokens});
  const Tensor weight = make.f32({kC}), bias = make.f32({kC});
  time_stream(state, 4 * x.numel(), [&] {
    residual_layernorm_forward(stream, sum, out, mean, rstd, a, b, weight, bias, kEps);
  });
}
BENCHMARK(residual_layernorm)->UseRealTime();

void layernorm_gradient(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const Shape x{kTokens, kC};
  const Tensor din = make.f32(x), dout = make.f32(x), in = make.f32(x), out = make.f32(x);
  const Tensor mean = make.f32({kTokens}), rstd = make.f32({kTokens});
  const Tensor weight = make.f32({kC}), dweight = make.f32({kC}), dbias = make.f32({kC});
  const Tensor scratch = make.u8(layernorm_backward_scratch(stream, kTokens, kC));
  layernorm_forward(stream, out, mean, rstd, in, weight, {}, kEps);
  time_stream(state, 4 * x.numel(), [&] {
    zero(stream, din);  // so that it does not grow without limit
    layernorm_backward(stream, din, dweight, dbias, dout, in, weight, mean, rstd, scratch, true,
                       false);
  });
}
BENCHMARK(layernorm_gradient)->UseRealTime();

/// The gradient overwrites the logits, so later runs see flat rows; the work is the same.
void cross_entropy(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const std::int64_t rows = state.range(0);
  const Tensor logits = make.f32({rows, kVp}), losses = make.f32({rows});
  const Tensor targets = make.i32({rows}, kV);
  time_stream(state, 2 * rows * kVp,
              [&] { cross_entropy_backward(stream, losses, logits, targets, kV, 1.0f, nullptr); });
}
BENCHMARK(cross_entropy)->Arg(32)->Arg(kTokens)->UseRealTime();

struct AttentionTensors {
  AttentionTensors(Tensors& make, Stream& stream, std::int64_t B, std::int64_t T)
      : qkv(make.f32({B, T, 3 * kHeads, kHeadSize})),
        dqkv(make.f32(qkv.shape())),
        out(make.f32({B, T, kHeads, kHeadSize})),
        dout(make.f32(out.shape())),
        lse(make.f32({B, kHeads, T})),
        scratch(make.u8(
            attention_backward_scratch(stream, DType::kF32, B, T, kHeads, kHeads, kHeadSize))) {}
  Tensor qkv, dqkv, out, dout, lse, scratch;
};

/// Multiplications and additions of one T×T product per head, causal half.
double attention_flops(std::int64_t B, std::int64_t T) {
  return static_cast<double>(B * kHeads * T * T * kHeadSize);
}

void attention(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const std::int64_t B = state.range(0), T = state.range(1);
  const AttentionTensors t(make, stream, B, T);
  for (auto _ : state) attention_forward(stream, t.out, t.lse, t.qkv, kHeads, 0.125f);
  state.counters["flops"] =
      benchmark::Counter(2 * attention_flops(B, T), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(attention)->Args({4, 64})->Args({1, 1024})->UseRealTime();

void attention_gradient(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const std::int64_t B = state.range(0), T = state.range(1);
  const AttentionTensors t(make, stream, B, T);
  attention_forward(stream, t.out, t.lse, t.qkv, kHeads, 0.125f);
  for (auto _ : state) {
    attention_backward(stream, t.dqkv, t.dout, t.qkv, t.out, t.lse, t.scratch, kHeads, 0.125f);
  }
  state.counters["flops"] =
      benchmark::Counter(5 * attention_flops(B, T), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(attention_gradient)->Args({4, 64})->Args({1, 1024})->UseRealTime();

void embedding_gradient(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const Tensor dwte = make.f32({kVp, kC}), dwpe = make.f32({1024, kC});
  const Tensor dout = make.f32({4, kTokens / 4, kC});
  const Tensor tokens = make.i32({4, kTokens / 4}, kV);
  time_stream(state, 4 * kTokens * kC + 1024 * kC,
              [&] { embedding_backward(stream, dwte, dwpe, dout, tokens, {}, false); });
}
BENCHMARK(embedding_gradient)->UseRealTime();

constexpr std::int64_t kParameters = 32 << 20;

void global_norm(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const Tensor grad = make.f32({kParameters}), partials = make.f32({kParameters / kNormBlock});
  time_stream(state, kParameters, [&] { sum_of_squares(stream, partials, grad); });
}
BENCHMARK(global_norm)->UseRealTime();

void adamw(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const Tensor theta = make.f32({kParameters}), grad = make.f32({kParameters});
  const Tensor m = make.f32({kParameters}), v = make.f32({kParameters});
  zero(stream, v);
  const Tensor memory = make.u8(sizeof(StepBlock));
  StepBlock block;
  block.lr = 1e-4f;
  block.grad_scale = 1.0f;
  block.updates = 5;
  copy_from_host(stream, memory, &block);
  const AdamWRange ranges[] = {{theta, {}, m, v, grad}};
  time_stream(state, 7 * kParameters,
              [&] { adamw_update(stream, ranges, static_cast<StepBlock*>(memory.raw()), {}); });
}
BENCHMARK(adamw)->UseRealTime();

}  // namespace
}  // namespace llmc::bench

BENCHMARK_MAIN();
