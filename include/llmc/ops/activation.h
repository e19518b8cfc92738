#pragma once

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// out = 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), GPT-2's form of GELU (Hendrycks and Gimpel,
/// 2016). out, in: the same element count, f32 or bf16.
void gelu_forward(Stream& stream, const Tensor& out, const Tensor& in);

/// din = dout ⊙ gelu'(in). din may be dout.
void gelu_backward(Stream& stream, const Tensor& din, const Tensor& dout, const Tensor& in);

/// out = a + b. All of the same dtype and element count; out may be a or b.
void add(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b);

/// Converts between f32 and bf16, rounding to nearest even. Element counts are the same.
void convert(Stream& stream, const Tensor& out, const Tensor& in);

}  // namespace llmc
