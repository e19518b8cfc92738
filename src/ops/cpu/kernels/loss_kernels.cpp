#include "ops/cpu/kernels/loss_kernels.h"

#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {
namespace {

/// Columns that share one maximum: they are still in the L1 cache when their exponentials are
/// summed.
constexpr std::int64_t kBlock = 2048;

template <class T>
float block_max(const T* x, std::int64_t n) {
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
void max_and_sum(float* max_out, float* sum_out, const T* logits, std::int64_t V) {
  float largest = -__builtin_inff();
  float total = 0.0f;
  for (std::int64_t begin = 0; begin < V; begin += kBlock) {
    const std::int64_t n = V - begin < kBlock ? V - begin : kBlock;
    const T* const x = logits + begin;
    const float candidate = block_max(x, n);
    if (candidate > largest) {
      total *= exp(splat(largest - candidate))[0];
      largest = candidate;
    }
    total += sum_over(n, [&](std::int64_t i, auto lanes) {
      return exp(load(x + i, lanes, -__builtin_inff()) - largest);
    });
  }
  *max_out = largest;
  *sum_out = total;
}

template <class T>
void scaled_exp(T* logits, std::int64_t V, float largest, float factor) {
  for_vectors(V, [&](std::int64_t i, auto lanes) {
    store(logits + i, exp(load(logits + i, lanes) - largest) * factor, lanes);
  });
}

}  // namespace

template <class T>
const LossKernels<T>& loss_kernels() {
  static constexpr LossKernels<T> kTable = {max_and_sum<T>, scaled_exp<T>};
  return kTable;
}
template const LossKernels<float>& loss_kernels();
template const LossKernels<bf16>& loss_kernels();

}  // namespace llmc::cpu::LLMC_ISA
