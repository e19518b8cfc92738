#pragma once

// GELU and its derivative on a vector, shared by the element-wise ops and by the epilogues of the
// matrix product, so that both give the same bits. The tanh form is x·σ(2u) with
// u = √(2/π)·(x + 0.044715·x³), since (1 + tanh u)/2 = σ(2u).

#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {

/// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
inline VecF gelu(VecF x) {
  const VecF minus_2u = x * (-1.5957691216f - 0.0713548163f * x * x);
  return x / (1.0f + exp(minus_2u));
}

/// The derivative of gelu at x, σ + x·σ·(1 − σ)·d(2u)/dx, where 1 − σ = σ·e^−2u.
inline VecF gelu_gradient(VecF x) {
  const VecF s = x * x;
  const VecF minus_2u = x * (-1.5957691216f - 0.0713548163f * s);
  const VecF e = exp(minus_2u);
  const VecF sigmoid = 1.0f / (1.0f + e);
  return sigmoid + x * sigmoid * (e * sigmoid) * (1.5957691216f + 0.2140644488f * s);
}

}  // namespace llmc::cpu::LLMC_ISA
