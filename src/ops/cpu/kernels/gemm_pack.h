#pragma once

// Packing: copies a panel of P rows of a matrix so that its P values of one depth lie together,
// which is the order the matrix product's inner loop reads. A source whose depth is contiguous is
// transposed in registers.

#include <cstdint>
#include <cstring>
#include <utility>

#include "llmc/core/dtype.h"
#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {

/// A vector of W floats, and of W 16-bit and 32-bit integers; W is a power of two.
template <int W>
struct Lanes {
  typedef float Float __attribute__((vector_size(W * 4)));
  typedef std::uint32_t Word __attribute__((vector_size(W * 4)));
  typedef std::uint16_t Half __attribute__((vector_size(W * 2)));
};

template <int W>
inline typename Lanes<W>::Float load_lanes(const float* p) {
  typename Lanes<W>::Float v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <int W>
inline typename Lanes<W>::Float load_lanes(const bf16* p) {
  typename Lanes<W>::Half h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<typename Lanes<W>::Float>(
      __builtin_convertvector(h, typename Lanes<W>::Word) << 16);
}
inline float load_one(const float* p) {
  return *p;
}
inline float load_one(const bf16* p) {
  const std::uint32_t word = static_cast<std::uint32_t>(p->bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

/// Swaps the off-diagonal S×S blocks of each 2S×2S block of the two rows a and b.
template <int W, int S, int... L>
inline void exchange(typename Lanes<W>::Float& a, typename Lanes<W>::Float& b,
                     std::integer_sequence<int, L...>) {
  const auto low = __builtin_shufflevector(a, b, ((L & S) ? W + (L ^ S) : L)...);
  const auto high = __builtin_shufflevector(a, b, ((L & S) ? W + L : (L ^ S))...);
  a = low;
  b = high;
}

/// Transposes the W×W matrix whose rows are v.
template <int W, int S = W / 2>
inline void transpose(typename Lanes<W>::Float* v) {
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) {
    if (!(i & S)) exchange<W, S>(v[i], v[i + S], std::make_integer_sequence<int, W>());
  }
  if constexpr (S > 1) transpose<W, S / 2>(v);
}

/// Largest power of two up to kWidth that divides P.
constexpr int lane_group(int p) {
  int width = 1;
  while (width < kWidth && p % (2 * width) == 0) width *= 2;
  return width;
}

/// dst[d·P + w] = element (w, d) of src, w < P, d < depth; element (w, d) is at w·ld + d.
template <int P, class T>
void pack_transposed(float* dst, const T* src, std::int64_t ld, std::int64_t depth) {
  constexpr int W = lane_group(P);
  for (int w = 0; w < P; w += W) {
    const T* rows = src + w * ld;
    std::int64_t d = 0;
    for (; d + W <= depth; d += W) {
      typename Lanes<W>::Float v[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) v[i] = load_lanes<W>(rows + i * ld + d);
      transpose<W>(v);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) std::memcpy(dst + (d + i) * P + w, &v[i], sizeof v[i]);
    }
    for (; d < depth; ++d) {
      for (int i = 0; i < W; ++i) dst[d * P + w + i] = load_one(rows + i * ld + d);
    }
  }
}

/// dst[d·P + w] = element (w, d) of src, w < P, d < depth; element (w, d) is at d·ld + w.
template <int P, class T>
void pack_copied(float* dst, const T* src, std::int64_t ld, std::int64_t depth) {
  constexpr int W = lane_group(P);
  for (std::int64_t d = 0; d < depth; ++d) {
#pragma GCC unroll 16
    for (int w = 0; w < P; w += W) {
      const auto v = load_lanes<W>(src + d * ld + w);
      std::memcpy(dst + d * P + w, &v, sizeof v);
    }
  }
}

/// Packs a panel of `width` ≤ P rows from element (0, 0) of src on; rows past `width` are zeros.
template <int P, class T>
void pack_panel(float* dst, const T* src, std::int64_t ld, bool depth_contiguous,
                std::int64_t width, std::int64_t depth) {
  if (width == P) {
    depth_contiguous ? pack_transposed<P>(dst, src, ld, depth)
                     : pack_copied<P>(dst, src, ld, depth);
    return;
  }
  const std::int64_t w_step = depth_contiguous ? ld : 1;
  const std::int64_t d_step = depth_contiguous ? 1 : ld;
  for (std::int64_t d = 0; d < depth; ++d) {
    for (std::int64_t w = 0; w < P; ++w) {
      dst[d * P + w] = w < width ? load_one(src + w * w_step + d * d_step) : 0.0f;
    }
  }
}

}  // namespace llmc::cpu::LLMC_ISA
