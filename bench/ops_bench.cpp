// Times single ops at the sizes of GPT-2: bytes per second for those that stream memory, to be
// compared with "copy" in the same run, and operations per second for products and attention.
//
//   ops_bench [--benchmark_filter=REGEX]      (threads: OMP_NUM_THREADS)

#include "ops_bench.h"

#include <cstdio>
#include <set>

#include "llmc/core/error.h"
#include "llmc/ops/activation.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/embedding.h"
#include "llmc/ops/layernorm.h"
#include "llmc/ops/loss.h"
#include "llmc/ops/step.h"

namespace llmc::bench {
namespace {

constexpr std::int64_t kC = 768;
constexpr std::int64_t kV = 50257;
constexpr std::int64_t kVp = 50304;
constexpr std::int64_t kT = 1024;
constexpr float kEps = 1e-5f;

std::int64_t tokens() {
  return on_gpu() ? 64 * kT : 256;
}

/// Rows of activations of both dtypes, as wide as GPT-2's models.
void row_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "C", "bf16"})->UseRealTime();
  for (const std::int64_t bf16 : {0, 1}) {
    for (const std::int64_t channels : {768, 1024, 1280, 1600, 4096, 12288}) {
      if (channels == kC || on_gpu()) bench->Args({tokens() * kC / channels, channels, bf16});
    }
  }
}

/// Plain elements of both dtypes: those of a small tensor, and of one that no cache holds.
void element_counts(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"n", "bf16"})->UseRealTime();
  for (const std::int64_t bf16 : {0, 1}) {
    bench->Args({256 * kC, bf16});
    bench->Args({on_gpu() ? tokens() * 4 * kC : 16 << 20, bf16});
  }
}

/// What an element-wise benchmark works on.
struct Elements {
  explicit Elements(const benchmark::State& state)
      : count(state.range(0)), dtype(dtype_of(state.range(1))) {}
  Tensor normal() { return make.normal(dtype, {count}); }

  std::int64_t count;
  DType dtype;
  Stream stream{Device::open()};
  Tensors make{stream};
};

void copy_memory(benchmark::State& state) {
  Elements e(state);
  const Tensor a = e.normal(), b = e.normal();
  time_stream(state, e.stream, 2 * a.bytes(), [&] { copy(e.stream, a, b); });
}
BENCHMARK(copy_memory)->Apply(element_counts);

void gelu(benchmark::State& state) {
  Elements e(state);
  const Tensor a = e.normal(), b = e.normal();
  time_stream(state, e.stream, 2 * a.bytes(), [&] { gelu_forward(e.stream, a, b); });
}
BENCHMARK(gelu)->Apply(element_counts);

void gelu_gradient(benchmark::State& state) {
  Elements e(state);
  const Tensor a = e.normal(), b = e.normal(), c = e.normal();
  time_stream(state, e.stream, 3 * a.bytes(), [&] { gelu_backward(e.stream, a, b, c); });
}
BENCHMARK(gelu_gradient)->Apply(element_counts);

void add_tensors(benchmark::State& state) {
  Elements e(state);
  const Tensor a = e.normal(), b = e.normal(), c = e.normal();
  time_stream(state, e.stream, 3 * a.bytes(), [&] { add(e.stream, a, b, c); });
}
BENCHMARK(add_tensors)->Apply(element_counts);

/// To the dtype from the other one.
void convert_tensor(benchmark::State& state) {
  Elements e(state);
  const Tensor to = e.normal();
  const Tensor from = e.make.normal(e.dtype == DType::kF32 ? DType::kBF16 : DType::kF32, {e.count});
  time_stream(state, e.stream, to.bytes() + from.bytes(), [&] { convert(e.stream, to, from); });
}
BENCHMARK(convert_tensor)->Apply(element_counts);

/// What a benchmark of layer norm works on.
struct Rows {
  explicit Rows(const benchmark::State& state)
      : count(state.range(0)), channels(state.range(1)), dtype(dtype_of(state.range(2))) {}
  Tensor normal() { return make.normal(dtype, {count, channels}); }

  std::int64_t count;
  std::int64_t channels;
  DType dtype;
  Stream stream{Device::open()};
  Tensors make{stream};
  const Tensor mean = make.zeros(DType::kF32, {count});
  const Tensor rstd = make.zeros(DType::kF32, {count});
  const Tensor weight = make.normal(dtype, {channels});
  const Tensor bias = make.normal(dtype, {channels});
};

void layernorm(benchmark::State& state) {
  Rows r(state);
  const Tensor out = r.normal(), in = r.normal();
  time_stream(state, r.stream, 2 * in.bytes(), [&] {
    layernorm_forward(r.stream, out, r.mean, r.rstd, in, r.weight, r.bias, kEps);
  });
}
BENCHMARK(layernorm)->Apply(row_sizes);

void residual_layernorm(benchmark::State& state) {
  Rows r(state);
  const Tensor sum = r.normal(), out = r.normal(), a = r.normal(), b = r.normal();
  time_stream(state, r.stream, 4 * a.bytes(), [&] {
    residual_layernorm_forward(r.stream, sum, out, r.mean, r.rstd, a, b, r.weight, r.bias, kEps);
  });
}
BENCHMARK(residual_layernorm)->Apply(row_sizes);

/// The gradient is added to what is there: that grows, but stays finite.
void layernorm_gradient(benchmark::State& state) {
  Rows r(state);
  const Tensor din = r.normal(), dout = r.normal(), in = r.normal();
  const Tensor dweight = r.make.zeros(DType::kF32, {r.channels});
  const Tensor dbias = r.make.zeros(DType::kF32, {r.channels});
  const Tensor scratch = r.make.scratch(layernorm_backward_scratch(r.stream, r.count, r.channels));
  layernorm_forward(r.stream, din, r.mean, r.rstd, in, r.weight, {}, kEps);
  time_stream(state, r.stream, 4 * in.bytes(), [&] {
    layernorm_backward(r.stream, din, dweight, dbias, dout, in, r.weight, r.mean, r.rstd, scratch,
                       true, false);
  });
}
BENCHMARK(layernorm_gradient)->Apply(row_sizes);

void logit_rows(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "bf16"})->UseRealTime();
  for (const std::int64_t bf16 : {0, 1}) {
    for (const std::int64_t rows : {32, 256}) bench->Args({on_gpu() ? 32 * rows : rows, bf16});
  }
}

/// The gradient overwrites the logits, so later runs see flat rows; the work is the same.
void cross_entropy(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const std::int64_t rows = state.range(0);
  const Tensor logits = make.normal(dtype_of(state.range(1)), {rows, kVp});
  const Tensor losses = make.zeros(DType::kF32, {rows}), targets = make.integers({rows}, kV);
  time_stream(state, stream, 2 * logits.bytes(),
              [&] { cross_entropy_backward(stream, losses, logits, targets, kV, 1.0f, nullptr); });
}
BENCHMARK(cross_entropy)->Apply(logit_rows);

void cross_entropy_loss(benchmark::State& state) {
  Stream stream(Device::open());
  Tensors make(stream);
  const std::int64_t rows = state.range(0);
  const Tensor logits = make.normal(dtype_of(state.range(1)), {rows, kVp});
  const Tensor losses = make.zeros(DType::kF32, {rows}), targets = make.integers({rows}, kV);
  time_stream(state, stream, logits.bytes(),
              [&] { cross_entropy_forward(stream, losses, logits, targets, kV, nullptr); });
}
BENCHMARK(cross_entropy_loss)->Apply(logit_rows);

void batch_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"B", "T", "bf16"})->UseRealTime();
  for (const std::int64_t bf16 : {0, 1}) {
    bench->Args({on_gpu() ? 64 : 4, on_gpu() ? kT : 64, bf16});
  }
}

/// What a benchmark of the embedding works on.
struct Lookup {
  explicit Lookup(const benchmark::State& state)
      : batch(state.range(0)), length(state.range(1)), dtype(dtype_of(state.range(2))) {}

  std::int64_t batch;
  std::int64_t length;
  DType dtype;
  Stream stream{Device::open()};
  Tensors make{stream};
  const Tensor tokens = make.integers({batch, length}, kV);
  const Tensor vectors = make.normal(dtype, {batch, length, kC});
};

/// A vector read and one written for each token; positions come from a cache.
void embedding(benchmark::State& state) {
  Lookup l(state);
  const Tensor wte = l.make.normal(l.dtype, {kVp, kC}), wpe = l.make.normal(l.dtype, {kT, kC});
  time_stream(state, l.stream, 2 * l.vectors.bytes(),
              [&] { embedding_forward(l.stream, l.vectors, l.tokens, wte, wpe); });
}
BENCHMARK(embedding)->Apply(batch_sizes);

/// Counted: each vector read once, the vectors of the tokens that occur read and written, those of
/// the positions written.
void embedding_gradient(benchmark::State& state) {
  Lookup l(state);
  const Tensor dwte = l.make.zeros(DType::kF32, {kVp, kC});
  const Tensor dwpe = l.make.zeros(DType::kF32, {kT, kC});
  const Tensor scratch =
      l.make.scratch(embedding_backward_scratch(l.stream, l.batch, l.length, kC));
  std::vector<std::int32_t> drawn(static_cast<std::size_t>(l.tokens.numel()));
  copy_to_host(l.stream, drawn.data(), l.tokens);
  const std::set<std::int32_t> occurring(drawn.begin(), drawn.end());
  const std::size_t bytes =
      l.vectors.bytes() + 2 * occurring.size() * kC * sizeof(float) + dwpe.bytes();
  time_stream(state, l.stream, bytes, [&] {
    embedding_backward(l.stream, dwte, dwpe, l.vectors, l.tokens, scratch, false);
  });
}
BENCHMARK(embedding_gradient)->Apply(batch_sizes);

void parameter_counts(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"n", "bf16"})->UseRealTime();
  for (const std::int64_t bf16 : {0, 1}) bench->Args({on_gpu() ? 128 << 20 : 32 << 20, bf16});
}

void global_norm(benchmark::State& state) {
  Elements e(state);
  const Tensor grad = e.normal();
  const Tensor partials = e.make.zeros(DType::kF32, {(e.count + kNormBlock - 1) / kNormBlock});
  time_stream(state, e.stream, grad.bytes(), [&] { sum_of_squares(e.stream, partials, grad); });
}
BENCHMARK(global_norm)->Apply(parameter_counts);

/// bf16: parameters with fp32 masters. Gradients are fp32.
void adamw(benchmark::State& state) {
  Elements e(state);
  const auto f32 = [&] { return e.make.normal(DType::kF32, {e.count}); };
  const Tensor param = e.normal(), grad = f32(), m = f32();
  const Tensor v = e.make.zeros(DType::kF32, {e.count});
  const Tensor master = e.dtype == DType::kBF16 ? f32() : Tensor();
  const Tensor memory = e.make.zeros(DType::kU8, {static_cast<std::int64_t>(sizeof(StepBlock))});
  StepBlock block;
  block.lr = 1e-4f;
  block.grad_scale = 1.0f;
  block.updates = 5;
  copy_from_host(e.stream, memory, &block);
  const AdamWRange ranges[] = {{param, master, m, v, grad}};
  // A param that is the rounding of its master is only written.
  const std::size_t weights = master ? param.bytes() + 2 * master.bytes() : 2 * param.bytes();
  time_stream(state, e.stream, weights + 2 * m.bytes() + 2 * v.bytes() + grad.bytes(),
              [&] { adamw_update(e.stream, ranges, static_cast<StepBlock*>(memory.raw()), {}); });
}
BENCHMARK(adamw)->Apply(parameter_counts);

}  // namespace
}  // namespace llmc::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  try {
    benchmark::AddCustomContext("device", llmc::Device::open().name());
    benchmark::RunSpecifiedBenchmarks();
  } catch (const llmc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
