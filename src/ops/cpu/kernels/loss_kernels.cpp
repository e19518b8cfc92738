#include "ops/cpu/kernels/loss_kernels.h"

#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {
namespace {

template <class T>
float largest_of(const T* x, std::int64_t n) {
  VecF a = splat(-__builtin_inff());
  VecF b = a;
  std::int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    a = max(load(x + i), a);
    b = max(load(x + i + kWidth), b);
  }
  for (; i + kWidth <= n; i += kWidth) a = max(load(x + i), a);
  if (i < n) b = max(load(x + i, Partial{n - i}, -__builtin_inff()), b);
  return max_lane(max(a, b));
}

template <class T>
void exponentials(SoftmaxRow& row, const T* logits, std::int64_t V) {
  float largest = -__builtin_inff();
  float total = 0.0f;
  for (std::int64_t begin = 0; begin < V; begin += kLossBlock) {
    const std::int64_t n = V - begin < kLossBlock ? V - begin : kLossBlock;
    const T* const x = logits + begin;
    float* const e = row.exponentials + begin;
    const float candidate = largest_of(x, n);
    if (candidate > largest) {
      total *= exp(splat(largest - candidate))[0];
      largest = candidate;
    }
    row.block_max[begin / kLossBlock] = largest;
    total += sum_over(n, [&](std::int64_t i, auto lanes) {
      const VecF y = exp(load(x + i, lanes, -__builtin_inff()) - largest);
      store(e + i, y, lanes);
      return y;
    });
  }
  row.largest = largest;
  row.sum = total;
}

template <class T>
void scale(T* out, const SoftmaxRow& row, std::int64_t V, float factor) {
  for (std::int64_t begin = 0; begin < V; begin += kLossBlock) {
    const std::int64_t n = V - begin < kLossBlock ? V - begin : kLossBlock;
    const float f = factor * exp(splat(row.block_max[begin / kLossBlock] - row.largest))[0];
    for_vectors(n, [&](std::int64_t i, auto lanes) {
      store(out + begin + i, load(row.exponentials + begin + i, lanes) * f, lanes);
    });
  }
}

}  // namespace

template <class T>
const LossKernels<T>& loss_kernels() {
  static constexpr LossKernels<T> kTable = {exponentials<T>, scale<T>};
  return kTable;
}
template const LossKernels<float>& loss_kernels();
template const LossKernels<bf16>& loss_kernels();

}  // namespace llmc::cpu::LLMC_ISA
