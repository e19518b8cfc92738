// Times the bias gradients of a GPU, alone and with the gradient of GELU in front. Part of
// ops_bench.

#include "core/cuda/device_impl.h"
#include "ops/cuda/matmul_kernels.h"
#include "ops_bench.h"

namespace llmc::bench {
namespace {

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "C", "bf16"})->UseRealTime();
  for (const std::int64_t bf16 : {0, 1}) {
    for (const std::int64_t channels : {768, 3072}) bench->Args({65536, channels, bf16});
  }
}

/// What a benchmark of column sums works on.
struct Columns {
  explicit Columns(const benchmark::State& state)
      : rows(state.range(0)), channels(state.range(1)), dtype(dtype_of(state.range(2))) {}
  Tensor normal() { return make.normal(dtype, {rows, channels}); }

  std::int64_t rows, channels;
  DType dtype;
  Stream stream{Device::open()};
  Tensors make{stream};
  const Tensor sums = make.zeros(DType::kF32, {channels});
};

void bias_gradient(benchmark::State& state) {
  Columns c(state);
  const Tensor in = c.normal();
  time_stream(state, c.stream, in.bytes(),
              [&] { cuda::column_sums(c.stream.impl(), c.sums, in, c.rows, c.channels, false); });
}
BENCHMARK(bias_gradient)->Apply(sizes);

}  // namespace
}  // namespace llmc::bench
