#pragma once

#include <cstdint>

#include "ops/cpu/kernels/kernel_table.h"

namespace llmc::cpu {

/// Columns of a row of logits that share one maximum: they are still in the L1 cache when their
/// exponentials are taken.
inline constexpr std::int64_t kLossBlock = 2048;

/// A row of logits as exponentials: with b = v / kLossBlock,
/// e^(logit[v] − largest) = exponentials[v] · e^(block_max[b] − largest).
struct SoftmaxRow {
  float* exponentials;  ///< (V)
  float* block_max;     ///< (ceil(V / kLossBlock)), the largest logit up to the end of the block
  float largest;
  float sum;  ///< of e^(logit − largest)
};

/// Softmax over one row of logits of type T (float or bf16), with one exponential per logit.
template <class T>
struct LossKernels {
  /// Fills what the row points to, and its largest and sum.
  void (*exponentials)(SoftmaxRow& row, const T* logits, std::int64_t V);
  /// out[v] = factor · e^(logit[v] − largest).
  void (*scale)(T* out, const SoftmaxRow& row, std::int64_t V, float factor);
};

LLMC_DECLARE_KERNELS(LossKernels, loss_kernels);

}  // namespace llmc::cpu
