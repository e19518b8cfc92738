#pragma once

#include <cstdint>

#include "ops/cpu/kernels/kernel_table.h"

namespace llmc::cpu {

/// Element-wise loops over n elements of type T (float or bf16).
template <class T>
struct ElementwiseKernels {
  /// out[i] = gelu(in[i]).
  void (*gelu_forward)(T* out, const T* in, std::int64_t n);
  /// din[i] = dout[i] · gelu'(in[i]); din may be dout.
  void (*gelu_backward)(T* din, const T* dout, const T* in, std::int64_t n);
  /// out[i] = a[i] + b[i]; out may be a or b.
  void (*add)(T* out, const T* a, const T* b, std::int64_t n);
  /// sum[i] += in[i].
  void (*accumulate)(float* sum, const T* in, std::int64_t n);
  /// Exact conversion to fp32.
  void (*widen)(float* out, const T* in, std::int64_t n);
  /// Conversion from fp32, rounded to nearest even.
  void (*narrow)(T* out, const float* in, std::int64_t n);
};

LLMC_DECLARE_KERNELS(ElementwiseKernels, elementwise_kernels);

}  // namespace llmc::cpu
