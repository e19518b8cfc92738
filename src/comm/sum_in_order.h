#pragma once

#include <cstdint>
#include <type_traits>

#include "llmc/core/dtype.h"

namespace llmc {

/// out[i] = part(0)[i] + part(1)[i] + …, added in fp32 in that order and rounded once. What a sum
/// is must not depend on who computes it. out may be one of the parts.
template <class T, class Part>
void sum_in_order(T* out, const Part& part, int ranks, std::int64_t count) {
  // Blocks stay in the cache while one part after the other is added.
  constexpr std::int64_t kBlock = 1024;
  const auto widen = [](T value) {
    if constexpr (std::is_same_v<T, bf16>) {
      return to_f32(value);
    } else {
      return value;
    }
  };
  float sums[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = count - begin < kBlock ? count - begin : kBlock;
    for (int r = 0; r < ranks; ++r) {
      const T* const values = part(r) + begin;
      for (std::int64_t i = 0; i < length; ++i) {
        sums[i] = r == 0 ? widen(values[i]) : sums[i] + widen(values[i]);
      }
    }
    for (std::int64_t i = 0; i < length; ++i) {
      if constexpr (std::is_same_v<T, bf16>) {
        out[begin + i] = to_bf16(sums[i]);
      } else {
        out[begin + i] = sums[i];
      }
    }
  }
}

}  // namespace llmc
