#pragma once

// Tiles of heads in shared memory, and what the flash attention kernels have in common.

#include <cstdint>

#include "ops/cuda/flash_attention.h"
#include "ops/cuda/kernel.cuh"
#include "ops/cuda/warp_products.cuh"

namespace llmc::cuda {

inline constexpr int kFlashWarps = 4;
inline constexpr int kFlashThreads = kFlashWarps * kWarp;
inline constexpr float kLn2 = 0.6931471805599453f;

/// Tiles hold rows of `kHead` elements, the head size rounded up; what lies beyond the head is 0.
template <class P, int kHead>
struct FlashTile {
  using Element = typename P::Element;
  static constexpr int kLd = kHead + P::kPad;
  static constexpr int kChunk = kVec<Element>;
  static constexpr int kChunks = kHead / kChunk;

  /// Begins to load kRows rows `stride` apart, of which those from `rows` on become 0. `aligned`:
  /// addresses, strides and the head size allow 16-byte accesses.
  template <int kRows>
  __device__ static void load(Element* tile, const Element* from, std::int64_t stride, int rows,
                              int head_size, bool aligned) {
    if (aligned) {
#pragma unroll
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kFlashThreads) {
        const int row = i / kChunks;
        const int column = i % kChunks * kChunk;
        const bool valid = row < rows && column < head_size;
        copy_16_async(tile + row * kLd + column, valid ? from + row * stride + column : from,
                      valid);
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kHead; i += kFlashThreads) {
        const int row = i / kHead;
        const int column = i % kHead;
        const bool valid = row < rows && column < head_size;
        tile[row * kLd + column] = valid ? from[row * stride + column] : from_float<Element>(0.0f);
      }
    }
  }

  /// Writes factor · sums, 16 rows of a warp, through its own 16 rows of shared memory.
  __device__ static void store(Element* to, std::int64_t stride, int rows, int head_size,
                               bool aligned, const Sums<kHead / 8>& sums, const float (&factor)[2],
                               Element* tile) {
    Element* const corner = tile + lane_id() / 4 * kLd + lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        corner[i / 2 * 8 * kLd + 8 * n + i % 2] = from_float<Element>(sums[n][i] * factor[i / 2]);
      }
    }
    __syncwarp();
    if (aligned) {
      for (int i = lane_id(); i < 16 * kChunks; i += kWarp) {
        const int row = i / kChunks;
        const int column = i % kChunks * kChunk;
        if (row < rows && column < head_size) {
          Vec<Element>::load(tile + row * kLd + column).store(to + row * stride + column);
        }
      }
    } else {
      for (int i = lane_id(); i < 16 * kHead; i += kWarp) {
        const int row = i / kHead;
        const int column = i % kHead;
        if (row < rows && column < head_size) to[row * stride + column] = tile[row * kLd + column];
      }
    }
  }
};

/// The largest or the sum of the values of the four lanes that share a row of sums.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

template <int N>
__device__ __forceinline__ void clear(Sums<N>& sums) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
  }
}

}  // namespace llmc::cuda
