#pragma once

// GELU and its derivative, shared by the element-wise ops and by whatever follows a matrix product,
// so that both give the same bits: every rounding is spelled out, none is left to the contraction
// of a caller's code. The tanh form is x·σ(2u) with u = √(2/π)·(x + 0.044715·x³), since
// (1 + tanh u)/2 = σ(2u) = 1/(1 + 2^t) with t = −2u·log2(e).

#include <cuda_runtime.h>

namespace llmc::cuda {

/// t of the above. `square`: x·x.
__device__ inline float gelu_exponent(float x, float square) {
  return __fmul_rn(x, __fmaf_rn(square, -0.102943240f, -2.30220820f));
}

/// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
__device__ inline float gelu(float x) {
  const float t = gelu_exponent(x, __fmul_rn(x, x));
  return __fdividef(x, __fadd_rn(1.0f, exp2f(t)));
}

/// The derivative of gelu at x, σ + x·σ·(1 − σ)·d(2u)/dx, where 1 − σ = σ·2^t. The limit of t keeps
/// 2^t finite; σ is zero in fp32 long before.
__device__ inline float gelu_gradient(float x) {
  const float square = __fmul_rn(x, x);
  const float e = exp2f(fminf(gelu_exponent(x, square), 120.0f));
  const float sigmoid = __fdividef(1.0f, __fadd_rn(1.0f, e));
  const float slope = __fmaf_rn(square, 0.214064449f, 1.59576912f);
  const float bend = __fmul_rn(__fmul_rn(x, sigmoid), __fmul_rn(e, sigmoid));
  return __fmaf_rn(bend, slope, sigmoid);
}

}  // namespace llmc::cuda
