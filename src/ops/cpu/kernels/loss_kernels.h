#pragma once

#include <cstdint>

#include "ops/cpu/kernels/kernel_table.h"

namespace llmc::cpu {

/// Softmax over one row of logits of type T (float or bf16).
template <class T>
struct LossKernels {
  /// max: the largest of V logits; sum: that of e^(logit − max) over them.
  void (*max_and_sum)(float* max, float* sum, const T* logits, std::int64_t V);
  /// logits[v] = factor · e^(logits[v] − max), v < V; in place.
  void (*scaled_exp)(T* logits, std::int64_t V, float max, float factor);
};

LLMC_DECLARE_KERNELS(LossKernels, loss_kernels);

}  // namespace llmc::cpu
