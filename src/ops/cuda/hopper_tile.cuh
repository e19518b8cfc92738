#pragma once

// What the attention kernels for Hopper share: products of a warp group with tiles of 64 rows, or
// multiples, of 64 bf16 each, permuted as tile_operand says.

#include "ops/cuda/flash_tile.cuh"
#include "ops/cuda/hopper.cuh"

namespace llmc::cuda {

inline constexpr int kHopperRows = 64;
inline constexpr int kHopperHead = 64;
inline constexpr int kHopperRowBytes = kHopperHead * 2;
inline constexpr int kHopperTileBytes = kHopperRows * kHopperRowBytes;

/// sums = left · tileᵀ of 64 rows each.
__device__ __forceinline__ void dot_tile(Sums<8>& sums, const void* left, const void* tile) {
  const std::uint64_t a = tile_operand(left);
  const std::uint64_t b = tile_operand(tile);
  multiply_group<false, false>(sums, a, b);
#pragma unroll
  for (int k = 1; k < kHopperHead / 16; ++k) {
    multiply_group<true, false>(sums, columns_further(a, k), columns_further(b, k));
  }
}

/// sums = rows · tileᵀ of 64 rows of tile.
__device__ __forceinline__ void dot_tile(Sums<8>& sums, const Bf16Products::Rows<kHopperHead>& rows,
                                         const void* tile) {
  const std::uint64_t b = tile_operand(tile);
  multiply_group<false, false>(sums, rows.at[0], b);
#pragma unroll
  for (int k = 1; k < kHopperHead / 16; ++k) {
    multiply_group<true, false>(sums, rows.at[k], columns_further(b, k));
  }
}

/// sums += weights · tile.
__device__ __forceinline__ void weigh_tile(Sums<8>& sums,
                                           const Bf16Products::Weights<kHopperRows>& weights,
                                           const void* tile) {
  const std::uint64_t b = tile_operand(tile);
#pragma unroll
  for (int k = 0; k < kHopperRows / 16; ++k) {
    multiply_group<true, true>(sums, weights.at[k], rows_further(b, k));
  }
}

/// Where part `part` of 16 bytes of a row lies in a tile.
__device__ __forceinline__ int permuted(int row, int part) {
  return row * kHopperRowBytes + (part ^ row % 8) * 16;
}

/// A warp's 16 rows of the 64 of a tile.
__device__ __forceinline__ void load_rows(Bf16Products::Rows<kHopperHead>& rows,
                                          const unsigned char* tile, int first) {
#pragma unroll
  for (int k = 0; k < kHopperHead / 16; ++k) {
    load_matrices(rows.at[k], tile + permuted(first + lane_id() % 16, 2 * k + lane_id() / 16));
  }
}

/// Writes factor · sums, 16 rows of a warp, through 16 rows of shared memory of its own. Addresses,
/// strides and the head size allow 16-byte accesses.
__device__ __forceinline__ void store_tile(__nv_bfloat16* to, std::int64_t stride, int rows,
                                           int head_size, const Sums<8>& sums,
                                           const float (&factor)[2], unsigned char* tile) {
  __syncwarp();  // other lanes may have read there
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_id() / 4 + 8 * r;
      *reinterpret_cast<__nv_bfloat162*>(tile + permuted(row, n) + lane_id() % 4 * 4) =
          __floats2bfloat162_rn(sums[n][2 * r] * factor[r], sums[n][2 * r + 1] * factor[r]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = lane_id(); i < 16 * 8; i += kWarp) {
    const int row = i / 8;
    const int part = i % 8;
    if (row < rows && part * 8 < head_size) {
      *reinterpret_cast<uint4*>(to + row * stride + part * 8) =
          *reinterpret_cast<const uint4*>(tile + permuted(row, part));
    }
  }
}

}  // namespace llmc::cuda
