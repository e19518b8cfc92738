#pragma once

#include <cstdint>

#include "ops/cpu/kernels/kernel_table.h"

namespace llmc::cpu {

/// Layer normalisation of rows of C activations of type T (float or bf16).
template <class T>
struct LayerNormKernels {
  /// out = (in − mean)·rstd·weight + bias of `rows` rows. mean, rstd: (rows); both, and bias, may
  /// be null.
  void (*forward)(T* out, float* mean, float* rstd, const T* in, const float* weight,
                  const float* bias, std::int64_t rows, std::int64_t C, float eps);
  /// The same of sum = a + b, which is stored.
  void (*residual_forward)(T* sum, T* out, float* mean, float* rstd, const T* a, const T* b,
                           const float* weight, const float* bias, std::int64_t rows,
                           std::int64_t C, float eps);
  /// din (+)= the input's gradient; dweight, dbias: (C), the sums over these rows, overwritten.
  void (*backward)(T* din, float* dweight, float* dbias, const T* dout, const T* in,
                   const float* weight, const float* mean, const float* rstd, std::int64_t rows,
                   std::int64_t C, bool add_to_input);
};

LLMC_DECLARE_KERNELS(LayerNormKernels, layernorm_kernels);

}  // namespace llmc::cpu
