// Times the products of the linear layer at the sizes of GPT-2 124M: operations per second, and for
// few rows (decoding) also the bytes of weights read per second. Part of ops_bench.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <deque>
#include <utility>

#include "llmc/ops/linear.h"

namespace llmc::bench {
namespace {

/// The tensors of a linear layer of n rows, c inputs and oc outputs, with small values.
class Layer {
  std::deque<Buffer> buffers_;  // before the tensors that live in it

 public:
  explicit Layer(const benchmark::State& state)
      : n(state.range(0)),
        c(state.range(1)),
        oc(state.range(2)),
        dtype(state.range(3) == 0 ? DType::kF32 : DType::kBF16) {}

  Tensor make(Shape shape, DType type) {
    buffers_.emplace_back(stream.device(), static_cast<std::size_t>(shape.numel()) * size_of(type));
    const Tensor t(buffers_.back().data(), type, shape);
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      const float value = static_cast<float>(i * 37 % 1024) * 0x1p-9f - 1.0f;
      if (type == DType::kF32) {
        t.data<float>()[i] = value;
      } else {
        t.data<bf16>()[i] = to_bf16(value);
      }
    }
    return t;
  }

  const std::int64_t n, c, oc;
  const DType dtype;
  Stream stream{Device::open()};
  const Tensor in = make({n, c}, dtype), out = make({n, oc}, dtype);
  const Tensor weight = make({oc, c}, dtype), bias = make({oc}, dtype);
};

template <class Op>
void time_product(benchmark::State& state, const Layer& layer, const Op& op) {
  for (auto _ : state) op();
  state.counters["flops"] =
      benchmark::Counter(2.0 * static_cast<double>(layer.n * layer.c * layer.oc),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void forward(benchmark::State& state) {
  Layer l(state);
  time_product(state, l, [&] { linear_forward(l.stream, l.out, l.in, l.weight, l.bias); });
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(l.weight.bytes()));
}

void forward_gelu(benchmark::State& state) {
  Layer l(state);
  const Tensor pre = l.make({l.n, l.oc}, l.dtype);
  time_product(state, l,
               [&] { linear_gelu_forward(l.stream, l.out, pre, l.in, l.weight, l.bias); });
}

void backward_input(benchmark::State& state) {
  Layer l(state);
  time_product(state, l, [&] { linear_backward_input(l.stream, l.in, l.out, l.weight); });
}

void backward_gelu_input(benchmark::State& state) {
  Layer l(state);
  const Tensor pre = l.make({l.n, l.c}, l.dtype), dbias = l.make({l.c}, DType::kF32);
  time_product(state, l, [&] {
    linear_gelu_backward_input(l.stream, l.in, dbias, l.out, l.weight, pre, false);
  });
}

void backward_weight(benchmark::State& state) {
  Layer l(state);
  const Tensor dweight = l.make({l.oc, l.c}, DType::kF32), dbias = l.make({l.oc}, DType::kF32);
  time_product(state, l,
               [&] { linear_backward_weight(l.stream, dweight, dbias, l.out, l.in, false); });
}

constexpr std::int64_t kC = 768, kVp = 50304;

void training_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "in", "out", "bf16"});
  for (const std::int64_t bf16 : {0, 1}) {
    for (const auto& [in, out] :
         {std::pair{kC, 3 * kC}, {kC, kC}, {kC, 4 * kC}, {4 * kC, kC}, {kC, kVp}}) {
      bench->Args({256, in, out, bf16});
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
