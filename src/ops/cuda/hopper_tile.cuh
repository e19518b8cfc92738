#pragma once

// What the attention kernels for Hopper share: tiles of 64 tokens of a head, as hopper.cuh has
// them, of kHead columns: the head size rounded up. What lies beyond the head is 0.

#include "ops/cuda/flash_tile.cuh"
#include "ops/cuda/hopper.cuh"

namespace llmc::cuda {

template <int kHead>
inline constexpr int kHopperBlocks = (kHead + kTileColumns - 1) / kTileColumns;
template <int kHead>
inline constexpr int kHopperTileBytes = kHopperBlocks<kHead>* kTileBlockBytes;

/// Begins to copy 64 tokens of a head from the map's tensor; kHopperTileBytes end at the barrier.
template <int kHead>
__device__ __forceinline__ void copy_tile(unsigned char* to, const CUtensorMap* map,
                                          Barrier* barrier, int head, int token, int b) {
#pragma unroll
  for (int i = 0; i < kHopperBlocks<kHead>; ++i) {
    copy_box(to + i * kTileBlockBytes, map, barrier, i * kTileColumns, head, token, b);
  }
}

/// sums = left · tileᵀ.
template <int kHead>
__device__ __forceinline__ void dot_tile(Sums<8>& sums, const void* left, const void* tile) {
  const std::uint64_t a = tile_operand(left);
  const std::uint64_t b = tile_operand(tile);
  dot_group<false>(sums, a, b);
#pragma unroll
  for (int k = 1; k < kHead / 16; ++k) {
    dot_group<true>(sums, columns_further(a, k), columns_further(b, k));
  }
}

/// sums = rows · tileᵀ.
template <int kHead>
__device__ __forceinline__ void dot_tile(Sums<8>& sums, const Bf16Products::Rows<kHead>& rows,
                                         const void* tile) {
  const std::uint64_t b = tile_operand(tile);
  dot_group<false>(sums, rows.at[0], b);
#pragma unroll
  for (int k = 1; k < kHead / 16; ++k) dot_group<true>(sums, rows.at[k], columns_further(b, k));
}

/// sums += weights · tile.
template <int N>
__device__ __forceinline__ void weigh_tile(Sums<N>& sums,
                                           const Bf16Products::Weights<kTileRows>& weights,
                                           const void* tile) {
  const std::uint64_t b = tile_operand(tile);
#pragma unroll
  for (int k = 0; k < kTileRows / 16; ++k) weigh_group(sums, weights.at[k], rows_further(b, k));
}

/// Where part `part` of 16 bytes of a row lies in a tile.
__device__ __forceinline__ int permuted(int row, int part) {
  return part / 8 * kTileBlockBytes + row * kTileRowBytes + (part % 8 ^ row % 8) * 16;
}

/// A warp's 16 rows of the 64 of a tile.
template <int kHead>
__device__ __forceinline__ void load_rows(Bf16Products::Rows<kHead>& rows,
                                          const unsigned char* tile, int first) {
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    load_matrices(rows.at[k], tile + permuted(first + lane_id() % 16, 2 * k + lane_id() / 16));
  }
}

/// Writes factor · sums, 16 rows of a warp, through 16 rows of a tile of its own. Addresses,
/// strides and the head size allow 16-byte accesses.
template <int N>
__device__ __forceinline__ void store_tile(__nv_bfloat16* to, std::int64_t stride, int rows,
                                           int head_size, const Sums<N>& sums,
                                           const float (&factor)[2], unsigned char* tile) {
  __syncwarp();  // other lanes may have read there
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_id() / 4 + 8 * r;
      *reinterpret_cast<__nv_bfloat162*>(tile + permuted(row, n) + lane_id() % 4 * 4) =
          __floats2bfloat162_rn(sums[n][2 * r] * factor[r], sums[n][2 * r + 1] * factor[r]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = lane_id(); i < 16 * N; i += kWarp) {
    const int row = i / N;
    const int part = i % N;
    if (row < rows && part * 8 < head_size) {
      *reinterpret_cast<uint4*>(to + row * stride + part * 8) =
          *reinterpret_cast<const uint4*>(tile + permuted(row, part));
    }
  }
}

}  // namespace llmc::cuda
