#pragma once

#include <cstdint>

#include "llmc/core/tensor.h"
#include "ops/cuda/matmul_plan.h"

namespace llmc::cuda {

/// Any product, of any dtypes, sizes and alignments, without tensor cores and without haste: for
/// what cuBLASLt cannot do. Sums over k in order, in fp32.
void plain_matmul(Stream::Impl& stream, const Product& product);

/// sums (+)= column sums of a matrix, in fp32 and in an order that depends on the sizes only.
/// sums: (C), f32 or bf16; in: (R, C). Uses the workspace for products.
void column_sums(Stream::Impl& stream, const Tensor& sums, const Tensor& in, std::int64_t rows,
                 std::int64_t columns, bool accumulate);

/// d = d ⊙ gelu'(pre), as gelu_backward computes it; sums (+)= column sums of that, as column_sums
/// adds them; gelu = gelu(pre), as gelu_forward computes it. sums: (C) or empty; d, pre: (R, C);
/// gelu: (R, C) or empty.
void gelu_backward_sums(Stream::Impl& stream, const Tensor& sums, const Tensor& d,
                        const Tensor& gelu, const Tensor& pre, std::int64_t rows,
                        std::int64_t columns, bool accumulate);

}  // namespace llmc::cuda
