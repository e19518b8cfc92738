#pragma once

// Products of small fp32 matrices that lie in a cache, for the blocks of attention.

#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {

// A tile of the result stays in registers: 24 of the 32 that AVX-512 has, 12 of the 16 elsewhere.
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = kWidth == 16 ? 4 : 2;

/// Part of a product that a tile of rows needs: columns from `column`, terms [begin, end).
struct TileRange {
  std::int64_t column;
  std::int64_t begin;
  std::int64_t end;
};

/// An element of the left matrix is at data[row · row_stride + term · term_stride].
struct LeftMatrix {
  const float* data;
  std::int64_t row_stride;
  std::int64_t term_stride;
};

template <int kRows, int kVectors, bool kAccumulate>
inline void multiply_tile(float* c, std::int64_t ldc, LeftMatrix a, const float* b,
                          std::int64_t ldb, std::int64_t terms) {
  VecF acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = kAccumulate ? load(c + r * ldc + v * kWidth) : VecF{};
    }
  }
  for (std::int64_t k = 0; k < terms; ++k) {
    VecF right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + k * ldb + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float left = a.data[r * a.row_stride + k * a.term_stride];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + r * ldc + v * kWidth, acc[r][v]);
  }
}

template <int kRows, bool kAccumulate>
inline void multiply_rows(float* c, std::int64_t ldc, LeftMatrix a, const float* b,
                          std::int64_t ldb, std::int64_t columns, TileRange range) {
  a.data += range.begin * a.term_stride;
  b += range.begin * ldb;
  const std::int64_t terms = range.end > range.begin ? range.end - range.begin : 0;
  std::int64_t n = range.column / kWidth * kWidth;
  for (; n + kTileVectors * kWidth <= columns; n += kTileVectors * kWidth) {
    multiply_tile<kRows, kTileVectors, kAccumulate>(c + n, ldc, a, b + n, ldb, terms);
  }
  for (; n < columns; n += kWidth) {
    multiply_tile<kRows, 1, kAccumulate>(c + n, ldc, a, b + n, ldb, terms);
  }
}

/// c[m, n] (+)= Σ_k a(m, k) · b[k, n] for m < rows, n < columns; `columns` is a multiple of kWidth.
/// range(m, count) gives the TileRange of rows m to m + count − 1; what lies left of its column is
/// not written.
template <bool kAccumulate, class Range>
inline void multiply(float* c, std::int64_t ldc, LeftMatrix a, const float* b, std::int64_t ldb,
                     std::int64_t rows, std::int64_t columns, const Range& range) {
  std::int64_t m = 0;
  for (; m + kTileRows <= rows; m += kTileRows) {
    multiply_rows<kTileRows, kAccumulate>(c + m * ldc, ldc, a, b, ldb, columns,
                                          range(m, kTileRows));
    a.data += kTileRows * a.row_stride;
  }
  for (; m + 2 <= rows; m += 2) {
    multiply_rows<2, kAccumulate>(c + m * ldc, ldc, a, b, ldb, columns, range(m, 2));
    a.data += 2 * a.row_stride;
  }
  if (m < rows) {
    multiply_rows<1, kAccumulate>(c + m * ldc, ldc, a, b, ldb, columns, range(m, 1));
  }
}

// The halves of two vectors, lane by lane in turn: a0 b0 a1 b1 ….
#if defined(__AVX512F__)
inline VecF interleave_low(VecF a, VecF b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline VecF interleave_high(VecF a, VecF b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}
#elif defined(__AVX2__)
inline VecF interleave_low(VecF a, VecF b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
inline VecF interleave_high(VecF a, VecF b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
#else
inline VecF interleave_low(VecF a, VecF b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
inline VecF interleave_high(VecF a, VecF b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
#endif

/// out[c, r] = factor · in[r, c] for r < rows, c < columns, both multiples of kWidth. log2(kWidth)
/// perfect shuffles of the rows of a square tile transpose it.
inline void transpose(float* out, std::int64_t out_stride, const float* in, std::int64_t in_stride,
                      std::int64_t rows, std::int64_t columns, float factor) {
  for (std::int64_t r = 0; r < rows; r += kWidth) {
    for (std::int64_t c = 0; c < columns; c += kWidth) {
      VecF tile[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) tile[i] = load(in + (r + i) * in_stride + c) * factor;
#pragma GCC unroll 4
      for (int stage = 1; stage < kWidth; stage *= 2) {
        VecF next[kWidth];
#pragma GCC unroll 8
        for (int i = 0; i < kWidth / 2; ++i) {
          next[2 * i] = interleave_low(tile[i], tile[i + kWidth / 2]);
          next[2 * i + 1] = interleave_high(tile[i], tile[i + kWidth / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) tile[i] = next[i];
      }
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) store(out + (c + i) * out_stride + r, tile[i]);
    }
  }
}

}  // namespace llmc::cpu::LLMC_ISA
