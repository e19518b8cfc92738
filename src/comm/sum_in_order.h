#pragma once

#include <cstdint>

#include "llmc/core/dtype.h"

namespace llmc {

/// out[i] = parts[0][i] + parts[1][i] + …, added in fp32 in that order and rounded once. What a sum
/// is must not depend on who computes it. out may be one of the parts.
inline void sum_in_order(float* out, const float* const* parts, int ranks, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float sum = parts[0][i];
    for (int r = 1; r < ranks; ++r) sum += parts[r][i];
    out[i] = sum;
  }
}

inline void sum_in_order(bf16* out, const bf16* const* parts, int ranks, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float sum = to_f32(parts[0][i]);
    for (int r = 1; r < ranks; ++r) sum += to_f32(parts[r][i]);
    out[i] = to_bf16(sum);
  }
}

}  // namespace llmc
