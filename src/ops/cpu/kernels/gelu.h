#pragma once

// GELU and its derivative on a vector, shared by the element-wise ops and by the epilogues of the
// matrix product, so that both give the same bits.

#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {

inline constexpr float kGeluScale = 0.7978845608f;  // √(2/π)
inline constexpr float kGeluCubic = 0.044715f;

/// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
inline VecF gelu(VecF x) {
  return 0.5f * x * (1.0f + tanh(kGeluScale * (x + kGeluCubic * x * x * x)));
}

/// The derivative of gelu at x.
inline VecF gelu_gradient(VecF x) {
  const VecF t = tanh(kGeluScale * (x + kGeluCubic * x * x * x));
  const VecF inner = kGeluScale * (1.0f + 3.0f * kGeluCubic * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

}  // namespace llmc::cpu::LLMC_ISA
