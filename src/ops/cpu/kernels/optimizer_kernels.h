#pragma once

#include <cstdint>

#include "llmc/core/dtype.h"
#include "ops/cpu/kernels/kernel_table.h"

namespace llmc::cpu {

/// What one AdamW update multiplies by.
struct AdamWFactors {
  float grad_scale;
  float beta1;
  float beta2;
  float bias1;  ///< 1 / (1 − β1ᵗ)
  float bias2;  ///< 1 / (1 − β2ᵗ)
  float lr;
  float eps;
  float weight_decay;
};

/// Loops over parameters whose gradients are of type T (float or bf16).
template <class T>
struct OptimizerKernels {
  /// Sum of squares in fp32.
  float (*sum_of_squares)(const T* values, std::int64_t n);
  /// Updates theta, m and v in place.
  void (*adamw)(float* theta, float* m, float* v, const T* grad, std::int64_t n,
                const AdamWFactors& factors);
  /// out[i] = in[i] rounded up or down to bf16, up with the probability of what is cut off; the
  /// noise of element number e = first_index + i is half e % 2 (0: the low one) of word (e % 8) / 2
  /// of philox4x32(seed, e / 8, step). Values that are not finite stay as they are.
  void (*round_stochastically)(bf16* out, const float* in, std::int64_t n, std::uint64_t seed,
                               std::int64_t first_index, std::int64_t step);
};

LLMC_DECLARE_KERNELS(OptimizerKernels, optimizer_kernels);

}  // namespace llmc::cpu
