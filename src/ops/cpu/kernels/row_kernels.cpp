#include "ops/cpu/kernels/row_kernels.h"

#include "ops/cpu/kernels/gelu.h"
#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {
namespace {

template <class T>
void gelu_forward(T* out, const T* in, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, gelu(load(in + i)));
  if (i < n) store_partial(out + i, gelu(load_partial(in + i, n - i)), n - i);
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {gelu_forward<float>, gelu_forward<bf16>};

}  // namespace llmc::cpu::LLMC_ISA
