#pragma once

#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

// Layer normalisation (Ba et al., 2016) over the last dimension, statistics in fp32 with the biased
// variance. N rows of C channels (any shape whose last dimension is C); activations f32 or bf16;
// weight, bias: (C), f32 or bf16.

/// out = (in − mean)·rstd·weight + bias; rstd = 1/sqrt(var + eps). out, in: (N, C). mean, rstd:
/// (N) f32; both may be empty where no backward pass follows. bias may be empty.
void layernorm_forward(Stream& stream, const Tensor& out, const Tensor& mean, const Tensor& rstd,
                       const Tensor& in, const Tensor& weight, const Tensor& bias, float eps);

/// sum = a + b, then layernorm_forward of sum as stored, so that a later layernorm_forward of it
/// gives the same bits. sum, out, a, b: (N, C); sum may be a or b.
void residual_layernorm_forward(Stream& stream, const Tensor& sum, const Tensor& out,
                                const Tensor& mean, const Tensor& rstd, const Tensor& a,
                                const Tensor& b, const Tensor& weight, const Tensor& bias,
                                float eps);

/// Bytes of scratch that layernorm_backward needs.
std::int64_t layernorm_backward_scratch(const Stream& stream, std::int64_t rows,
                                        std::int64_t channels);

/// din (+)= gradient of the input; dweight, dbias (+)= theirs. `add_to_input`: din holds the
/// gradient that reaches the input past the layer and is added to; `accumulate`: dweight and dbias
/// are added to, else overwritten. din, dout, in: (N, C); dweight, dbias: (C) f32; dbias may be
/// empty; mean, rstd: (N) f32; scratch: u8. The order of additions is fixed.
void layernorm_backward(Stream& stream, const Tensor& din, const Tensor& dweight,
                        const Tensor& dbias, const Tensor& dout, const Tensor& in,
                        const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                        const Tensor& scratch, bool add_to_input, bool accumulate);

}  // namespace llmc
