#pragma once

#include <cstdint>

#include "core/cpu/isa.h"
#include "llmc/core/dtype.h"

namespace llmc::cpu {

/// Inner loops of the element-wise and row-wise ops, one table per instruction set. Pointers come
/// in pairs of overloads by dtype: index 0 is f32, 1 is bf16.
struct RowKernels {
  /// out[i] = gelu(in[i]), i < n.
  void (*gelu_forward_f32)(float* out, const float* in, std::int64_t n);
  void (*gelu_forward_bf16)(bf16* out, const bf16* in, std::int64_t n);
};

namespace portable {
extern const RowKernels kRowKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}
#endif

inline const RowKernels& row_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::kRowKernels;
  if (isa == Isa::kAvx2) return avx2::kRowKernels;
#endif
  (void)isa;
  return portable::kRowKernels;
}

}  // namespace llmc::cpu
