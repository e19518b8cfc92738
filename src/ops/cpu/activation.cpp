#include "llmc/ops/activation.h"

#include "core/cpu/parallel.h"
#include "llmc/core/error.h"
#include "ops/cpu/kernels/row_kernels.h"

namespace llmc {

void gelu_forward(Stream& stream, const Tensor& out, const Tensor& in) {
  if (out.numel() != in.numel() || out.dtype() != in.dtype()) {
    fail(ErrorKind::kInput, "gelu", "expected out like in, ", name_of(in.dtype()), " ", in.shape(),
         ", got ", name_of(out.dtype()), " ", out.shape());
  }
  const cpu::RowKernels& kernels = cpu::row_kernels(stream.impl().isa);
  cpu::parallel_for(stream.impl(), in.numel(), [&](std::int64_t begin, std::int64_t end) {
    if (in.dtype() == DType::kF32) {
      kernels.gelu_forward_f32(out.data<float>() + begin, in.data<float>() + begin, end - begin);
    } else {
      kernels.gelu_forward_bf16(out.data<bf16>() + begin, in.data<bf16>() + begin, end - begin);
    }
  });
}

}  // namespace llmc
