#pragma once

// Matrix products of a warp as attention needs them, once for each arithmetic: bf16 and TF32 on
// tensor cores, fp32 on the ordinary units. All share the accumulators' layout: Sums<N> are
// 16 x 8N fp32 values, of which the lane 4g + t holds, for every group of 8 columns, (g, 2t),
// (g, 2t+1), (g+8, 2t) and (g+8, 2t+1). Tiles lie in shared memory; `ld` is the distance of rows.
//
// A Products class has
//   Element        what tiles are made of
//   kPad           elements by which rows of tiles are longer than their contents, so that reads of
//                  several rows at once meet no bank twice
//   kRowsInTile    whether Rows only point to the tile
//   Rows<K>        16 rows of K elements as left operand
//   Weights<K>     16 x K sums, rounded, as left operand
//   dot            sums += rows · tileᵀ, tile: 8N rows of K
//   weigh          sums += weights · tile, tile: K rows of at least 8N
// where dot and weigh take M left operands at once and read the tile only once for them.

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/ptx.cuh"

namespace llmc::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

template <int N>
using Sums = float[N][4];

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) & 31;
}

struct Bf16Products {
  using Element = __nv_bfloat16;
  static constexpr int kPad = 8;
  static constexpr bool kRowsInTile = false;

  template <int K>
  struct Rows {
    std::uint32_t at[K / 16][4];

    __device__ __forceinline__ void load(const Element* tile, int ld) {
      const Element* const corner = tile + down(ld);
#pragma unroll
      for (int k = 0; k < K / 16; ++k) load_matrices(at[k], corner + 16 * k);
    }
    __device__ __forceinline__ void negate() {
#pragma unroll
      for (int k = 0; k < K / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) at[k][i] ^= 0x80008000u;
      }
    }
  };

  template <int K>
  struct Weights {
    std::uint32_t at[K / 16][4];

    __device__ __forceinline__ void set(const Sums<K / 8>& sums) {
#pragma unroll
      for (int k = 0; k < K / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const pair = &sums[2 * k + i / 2][2 * (i % 2)];
          at[k][i] = packed(pair[0], pair[1]);
        }
      }
    }
  };

  __device__ __forceinline__ static float exp2(float x) {
    return exp2_approx(x);
  }

  template <int M, int N, int K>
  __device__ __forceinline__ static void dot(Sums<N> (&sums)[M], const Rows<K> (&rows)[M],
                                             const Element* tile, int ld) {
    const Element* const corner = tile + across(ld);
#pragma unroll
    for (int k = 0; k < K / 16; ++k) {
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        std::uint32_t b[4];
        load_matrices(b, corner + 8 * n * ld + 16 * k);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply_bf16(sums[m][n], rows[m].at[k], b[0], b[1]);
          multiply_bf16(sums[m][n + 1], rows[m].at[k], b[2], b[3]);
        }
      }
    }
  }

  template <int M, int N, int K>
  __device__ __forceinline__ static void weigh(Sums<N> (&sums)[M], const Weights<K> (&weights)[M],
                                               const Element* tile, int ld) {
    const Element* const corner = tile + down(ld);
#pragma unroll
    for (int k = 0; k < K / 16; ++k) {
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        std::uint32_t b[4];
        load_matrices_transposed(b, corner + 16 * k * ld + 8 * n);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply_bf16(sums[m][n], weights[m].at[k], b[0], b[1]);
          multiply_bf16(sums[m][n + 1], weights[m].at[k], b[2], b[3]);
        }
      }
    }
  }

 private:
  // Where a lane reads of a 16 x 16 block, with the second of the four matrices below or right of
  // the first.
  __device__ __forceinline__ static int down(int ld) {
    return lane_id() % 16 * ld + lane_id() / 16 * 8;
  }
  __device__ __forceinline__ static int across(int ld) {
    return (lane_id() % 8 + lane_id() / 16 * 8) * ld + lane_id() / 8 % 2 * 8;
  }
  __device__ __forceinline__ static std::uint32_t packed(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
};

struct Tf32Products {
  using Element = float;
  static constexpr int kPad = 4;
  static constexpr bool kRowsInTile = false;

  template <int K>
  struct Rows {
    std::uint32_t at[K / 8][4];

    __device__ __forceinline__ void load(const Element* tile, int ld) {
      const Element* const corner = tile + lane_id() / 4 * ld + lane_id() % 4;
#pragma unroll
      for (int k = 0; k < K / 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) at[k][i] = to_tf32(corner[i % 2 * 8 * ld + 8 * k + i / 2 * 4]);
      }
    }
    __device__ __forceinline__ void negate() {
#pragma unroll
      for (int k = 0; k < K / 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) at[k][i] ^= 0x80000000u;
      }
    }
  };

  /// Column 2t stands where the instruction has column t of the left operand, 2t+1 where it has
  /// t+4; the right operand is read in the same order.
  template <int K>
  struct Weights {
    std::uint32_t at[K / 8][4];

    __device__ __forceinline__ void set(const Sums<K / 8>& sums) {
#pragma unroll
      for (int k = 0; k < K / 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) at[k][i] = to_tf32(sums[k][i % 2 * 2 + i / 2]);
      }
    }
  };

  __device__ __forceinline__ static float exp2(float x) {
    return exp2_approx(x);
  }

  template <int M, int N, int K>
  __device__ __forceinline__ static void dot(Sums<N> (&sums)[M], const Rows<K> (&rows)[M],
                                             const Element* tile, int ld) {
    const Element* const corner = tile + lane_id() / 4 * ld + lane_id() % 4;
#pragma unroll
    for (int k = 0; k < K / 8; ++k) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const Element* const at = corner + 8 * n * ld + 8 * k;
        const std::uint32_t b0 = to_tf32(at[0]);
        const std::uint32_t b1 = to_tf32(at[4]);
#pragma unroll
        for (int m = 0; m < M; ++m) multiply_tf32(sums[m][n], rows[m].at[k], b0, b1);
      }
    }
  }

  template <int M, int N, int K>
  __device__ __forceinline__ static void weigh(Sums<N> (&sums)[M], const Weights<K> (&weights)[M],
                                               const Element* tile, int ld) {
    const Element* const corner = tile + lane_id() % 4 * 2 * ld + lane_id() / 4;
#pragma unroll
    for (int k = 0; k < K / 8; ++k) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const Element* const at = corner + 8 * k * ld + 8 * n;
        const std::uint32_t b0 = to_tf32(at[0]);
        const std::uint32_t b1 = to_tf32(at[ld]);
#pragma unroll
        for (int m = 0; m < M; ++m) multiply_tf32(sums[m][n], weights[m].at[k], b0, b1);
      }
    }
  }
};

struct F32Products {
  using Element = float;
  static constexpr int kPad = 4;
  static constexpr bool kRowsInTile = true;

  template <int K>
  struct Rows {
    const Element* at;
    float sign;

    __device__ __forceinline__ void load(const Element* tile, int ld) {
      at = tile + lane_id() / 4 * ld;
      sign = 1.0f;
    }
    __device__ __forceinline__ void negate() { sign = -1.0f; }
  };

  template <int K>
  struct Weights {
    Sums<K / 8> at;

    __device__ __forceinline__ void set(const Sums<K / 8>& sums) {
#pragma unroll
      for (int k = 0; k < K / 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) at[k][i] = sums[k][i];
      }
    }
  };

  __device__ __forceinline__ static float exp2(float x) {
    return exp2f(x);
  }

  /// Rows and tile have the same distance of rows.
  template <int M, int N, int K>
  __device__ __forceinline__ static void dot(Sums<N> (&sums)[M], const Rows<K> (&rows)[M],
                                             const Element* tile, int ld) {
    const Element* const corner = tile + lane_id() % 4 * 2 * ld;
#pragma unroll 2
    for (int k = 0; k < K; k += 4) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float4 a0 = times(rows[m].sign, rows[m].at + k);
        const float4 a1 = times(rows[m].sign, rows[m].at + 8 * ld + k);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const float4 b0 = *reinterpret_cast<const float4*>(corner + 8 * n * ld + k);
          const float4 b1 = *reinterpret_cast<const float4*>(corner + (8 * n + 1) * ld + k);
          add_dot(sums[m][n][0], a0, b0);
          add_dot(sums[m][n][1], a0, b1);
          add_dot(sums[m][n][2], a1, b0);
          add_dot(sums[m][n][3], a1, b1);
        }
      }
    }
  }

  template <int M, int N, int K>
  __device__ __forceinline__ static void weigh(Sums<N> (&sums)[M], const Weights<K> (&weights)[M],
                                               const Element* tile, int ld) {
    const Element* const corner = tile + lane_id() % 4 * 2;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const float2* const b = reinterpret_cast<const float2*>(corner + k * ld);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const int owner = k % 8 / 2;
        const float w0 = __shfl_sync(kAllLanes, weights[m].at[k / 8][k % 2], owner, 4);
        const float w1 = __shfl_sync(kAllLanes, weights[m].at[k / 8][k % 2 + 2], owner, 4);
#pragma unroll
        for (int n = 0; n < N; ++n) add_outer(sums[m][n], w0, w1, b[4 * n]);
      }
    }
  }

 private:
  __device__ __forceinline__ static float4 times(float sign, const Element* p) {
    const float4 x = *reinterpret_cast<const float4*>(p);
    return {sign * x.x, sign * x.y, sign * x.z, sign * x.w};
  }
  __device__ __forceinline__ static void add_dot(float& sum, const float4& a, const float4& b) {
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.w, b.w, sum);
  }
  __device__ __forceinline__ static void add_outer(float (&sums)[4], float w0, float w1,
                                                   const float2& b) {
    sums[0] = fmaf(w0, b.x, sums[0]);
    sums[1] = fmaf(w0, b.y, sums[1]);
    sums[2] = fmaf(w1, b.x, sums[2]);
    sums[3] = fmaf(w1, b.y, sums[3]);
  }
};

}  // namespace llmc::cuda
