// Times the products of the linear layer at the sizes of GPT-2 124M: operations per second, and for
// few rows (decoding) also the bytes of weights read per second. Part of ops_bench.

#include <utility>

#include "llmc/ops/linear.h"
#include "ops_bench.h"

namespace llmc::bench {
namespace {

/// The tensors of a linear layer of n rows, c inputs and oc outputs.
struct Layer {
  explicit Layer(const benchmark::State& state)
      : n(state.range(0)), c(state.range(1)), oc(state.range(2)), dtype(dtype_of(state.range(3))) {}

  std::int64_t n, c, oc;
  DType dtype;
  Stream stream{Device::open()};
  Tensors make{stream};
  const Tensor in = make.normal(dtype, {n, c}), out = make.normal(dtype, {n, oc});
  const Tensor weight = make.normal(dtype, {oc, c}), bias = make.normal(dtype, {oc});
};

template <class Op>
void time_product(benchmark::State& state, Layer& layer, const Op& op) {
  time_arithmetic(state, layer.stream, 2.0 * static_cast<double>(layer.n * layer.c * layer.oc), op);
}

void forward(benchmark::State& state) {
  Layer l(state);
  time_product(state, l, [&] { linear_forward(l.stream, l.out, l.in, l.weight, l.bias); });
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(l.weight.bytes()));
}

void forward_gelu(benchmark::State& state) {
  Layer l(state);
  const Tensor pre = l.make.normal(l.dtype, {l.n, l.oc});
  time_product(state, l,
               [&] { linear_gelu_forward(l.stream, l.out, pre, l.in, l.weight, l.bias); });
}

void backward_input(benchmark::State& state) {
  Layer l(state);
  time_product(state, l, [&] { linear_backward_input(l.stream, l.in, l.out, l.weight); });
}

void backward_gelu_input(benchmark::State& state) {
  Layer l(state);
  const Tensor pre = l.make.normal(l.dtype, {l.n, l.c});
  const Tensor dbias = l.make.zeros(DType::kF32, {l.c});
  time_product(state, l, [&] {
    linear_gelu_backward_input(l.stream, l.in, {}, dbias, l.out, l.weight, pre, false);
  });
}

void backward_weight(benchmark::State& state) {
  Layer l(state);
  const Tensor dweight = l.make.zeros(DType::kF32, {l.oc, l.c});
  const Tensor dbias = l.make.zeros(DType::kF32, {l.oc});
  time_product(state, l,
               [&] { linear_backward_weight(l.stream, dweight, dbias, l.out, l.in, false); });
}

constexpr std::int64_t kC = 768, kVp = 50304;

void training_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "in", "out", "bf16"});
  for (const std::int64_t bf16 : {0, 1}) {
    for (const auto& [in, out] :
         {std::pair{kC, 3 * kC}, {kC, kC}, {kC, 4 * kC}, {4 * kC, kC}, {kC, kVp}}) {
      // The logits of a GPU's micro-batch are computed in chunks of rows.
      bench->Args({!on_gpu() ? 256 : out == kVp ? 8192 : 65536, in, out, bf16});
    }
  }
}
BENCHMARK(forward)->Name("linear/forward")->Apply(training_sizes)->UseRealTime();
BENCHMARK(forward_gelu)->Name("linear/forward_gelu")->Apply(training_sizes)->UseRealTime();
BENCHMARK(backward_input)->Name("linear/backward_input")->Apply(training_sizes)->UseRealTime();
BENCHMARK(backward_gelu_input)
    ->Name("linear/backward_gelu_input")
    ->Apply(training_sizes)
    ->UseRealTime();
BENCHMARK(backward_weight)->Name("linear/backward_weight")->Apply(training_sizes)->UseRealTime();

void decoding_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "in", "out", "bf16"});
  for (const std::int64_t bf16 : {0, 1}) {
    for (const std::int64_t rows : {1, 2, 4, 8, 16, 32}) bench->Args({rows, kC, kVp, bf16});
  }
}
BENCHMARK(forward)->Name("linear/decode")->Apply(decoding_sizes)->UseRealTime();

}  // namespace
}  // namespace llmc::bench
