#pragma once

// GELU and its derivative, shared by the element-wise ops and by whatever follows a matrix product,
// so that both give the same bits: every rounding is spelled out, none is left to the contraction
// of a caller's code. The tanh form is x·σ(2u) with u = √(2/π)·(x + 0.044715·x³), since
// (1 + tanh u)/2 = σ(2u) = 1/(1 + 2^t) with t = −2u·log2(e).

#include "ops/cuda/ptx.cuh"

namespace llmc::cuda {

/// GELU at x and what its derivative shares with it.
struct Gelu {
  float square;   // x·x
  float power;    // 2^t, which may be infinite
  float sigmoid;  // σ(2u); zero where it would be subnormal
  float value;    // x·σ(2u)

  __device__ explicit Gelu(float x) {
    square = __fmul_rn(x, x);
    power = exp2_approx(__fmul_rn(x, __fmaf_rn(square, -0.102943240f, -2.30220820f)));
    sigmoid = reciprocal_approx(__fadd_rn(1.0f, power));
    value = __fmul_rn(x, sigmoid);
  }

  /// The derivative, σ + x·σ·(1 − σ)·d(2u)/dx, where 1 − σ = σ·2^t. Saturation makes that zero
  /// where it is 0·∞; the derivative is zero in fp32 long before.
  __device__ float gradient() const {
    const float rest = multiply_saturated(power, sigmoid);
    const float slope = __fmaf_rn(square, 0.214064449f, 1.59576912f);
    return __fmaf_rn(__fmul_rn(value, rest), slope, sigmoid);
  }
};

}  // namespace llmc::cuda
