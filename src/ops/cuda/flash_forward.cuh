#pragma once

// Forward attention in one pass over the keys: a block holds a tile of queries and walks along the
// tiles of keys with a running maximum and sum of every row. A warp owns 16 M query rows.

#include "ops/cuda/flash_tile.cuh"

namespace llmc::cuda {

template <class T>
struct FlashForwardKernelArgs {
  T* out;
  float* lse;
  const T* q;
  const T* k;
  const T* v;
  std::int64_t q_token;
  std::int64_t q_sequence;
  std::int64_t kv_token;
  std::int64_t kv_sequence;
  int tokens;
  int position;
  int heads;
  int group;
  int head_size;
  bool aligned;
  bool negative;     ///< the scale is below 0
  float scale_log2;  ///< |scale| · log2(e), above 0
};

/// Shapes of the tiles for a kind of product and a head size.
template <class P, int kHeadSize>
struct FlashForwardShape {
  static constexpr int kHead = kHeadSize;
  using Tile = FlashTile<P, kHead>;
  static constexpr bool kIsBf16 = sizeof(typename P::Element) == 2;
  /// Tiles of 16 rows a warp multiplies with each part of a key tile that it reads.
  static constexpr int kM = kIsBf16 && kHead <= 64 ? 2 : 1;
  static constexpr int kQueries = 16 * kM * kFlashWarps;
  static constexpr int kKeys = !kIsBf16 && kHead > 64 ? 32 : 64;
  static constexpr int kKeyTile = kKeys * Tile::kLd;
  static constexpr int kQueryTile = kQueries * Tile::kLd;
  // Two stages of keys and values; where the queries go to registers they pass through the second.
  static_assert(P::kRowsInTile || kQueryTile <= 2 * kKeyTile);
  static constexpr int kElements = 4 * kKeyTile + (P::kRowsInTile ? kQueryTile : 0);
  static constexpr std::size_t kBytes = kElements * sizeof(typename P::Element);
};

/// Sets the scores of keys behind the queries to -inf. `ahead`: position of the warp's first query
/// minus that of the first key.
template <int M, int N>
__device__ __forceinline__ void mask_future(Sums<N> (&scores)[M], int ahead) {
  const int row = ahead + lane_id() / 4;
  const int column = lane_id() % 4 * 2;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + 8 * n + i % 2 > row + 16 * m + i / 2 * 8) scores[m][n][i] = -INFINITY;
      }
    }
  }
}

/// The running softmax of 16 rows: the maximum as a power of 2, and this lane's part of the sum,
/// for rows g and g + 8.
struct RunningSoftmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};

  /// Turns scores into weights relative to the new maximum; what was weighed before is to be
  /// multiplied by `correction`.
  template <class P, int N>
  __device__ __forceinline__ void add(Sums<N>& scores, float (&correction)[2], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = scores[0][2 * r];
#pragma unroll
      for (int n = 0; n < N; ++n) m = fmaxf(m, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      m = fmaxf(largest[r], row_max(m) * scale_log2);
      correction[r] = P::exp2(largest[r] - m);
      largest[r] = m;
      float part = 0.0f;
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          scores[n][i] = P::exp2(fmaf(scores[n][i], scale_log2, -m));
          part += scores[n][i];
        }
      }
      sum[r] = fmaf(sum[r], correction[r], part);
    }
  }
};

/// Multiplies rows g and g + 8; most often by 1, because the maximum seldom grows.
template <int N>
__device__ __forceinline__ void scale_rows(Sums<N>& sums, const float (&factor)[2]) {
  if (!__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] *= factor[i / 2];
  }
}

template <class P, int kHeadSize>
__global__ __launch_bounds__(kFlashThreads) void flash_forward_kernel(
    const FlashForwardKernelArgs<typename P::Element> a) {
  using Element = typename P::Element;
  using Shape = FlashForwardShape<P, kHeadSize>;
  using Tile = typename Shape::Tile;
  constexpr int M = Shape::kM;
  constexpr int kHead = Shape::kHead;
  constexpr int kKeys = Shape::kKeys;
  constexpr int kKeyTile = Shape::kKeyTile;
  extern __shared__ uint4 shared_memory[];
  Element* const shared = reinterpret_cast<Element*>(shared_memory);
  const auto keys_of = [shared](int tile) { return shared + tile % 2 * 2 * kKeyTile; };

  // The longest rows first, and the tiles of a head side by side.
  const int query_tiles = (a.tokens + Shape::kQueries - 1) / Shape::kQueries;
  const int head_of_all = static_cast<int>(blockIdx.x) / query_tiles;
  const int first =
      (query_tiles - 1 - static_cast<int>(blockIdx.x) % query_tiles) * Shape::kQueries;
  const int head = head_of_all % a.heads;
  const int b = head_of_all / a.heads;
  const int key_tiles = (a.position + min(first + Shape::kQueries, a.tokens) + kKeys - 1) / kKeys;
  const std::int64_t kv_at = b * a.kv_sequence + head / a.group * a.head_size;
  const auto load_keys = [&](int tile) {
    const std::int64_t at = kv_at + std::int64_t{tile} * kKeys * a.kv_token;
    const int rows = a.position + a.tokens - tile * kKeys;
    Element* const to = keys_of(tile);
    Tile::template load<kKeys>(to, a.k + at, a.kv_token, rows, a.head_size, a.aligned);
    Tile::template load<kKeys>(to + kKeyTile, a.v + at, a.kv_token, rows, a.head_size, a.aligned);
    end_copy_group();
  };

  Element* const query_tile = P::kRowsInTile ? shared + 4 * kKeyTile : keys_of(1);
  Tile::template load<Shape::kQueries>(
      query_tile, a.q + b * a.q_sequence + std::int64_t{first} * a.q_token + head * a.head_size,
      a.q_token, a.tokens - first, a.head_size, a.aligned);
  end_copy_group();
  load_keys(0);
  wait_for_copies<1>();
  __syncthreads();
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16 * M;
  typename P::template Rows<kHead> queries[M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    queries[m].load(query_tile + (warp_row + 16 * m) * Tile::kLd, Tile::kLd);
    if (a.negative) queries[m].negate();
  }

  Sums<kHead / 8> out[M];
  RunningSoftmax softmax[M];
#pragma unroll
  for (int m = 0; m < M; ++m) clear(out[m]);
  const int warp_first = a.position + first + warp_row;
  for (int tile = 0; tile < key_tiles; ++tile) {
    wait_for_copies<0>();
    __syncthreads();
    if (tile + 1 < key_tiles) load_keys(tile + 1);
    const int ahead = warp_first - tile * kKeys;
    if (ahead + 16 * M <= 0 || first + warp_row >= a.tokens) continue;
    Sums<kKeys / 8> scores[M];
#pragma unroll
    for (int m = 0; m < M; ++m) clear(scores[m]);
    P::dot(scores, queries, keys_of(tile), Tile::kLd);
    if (ahead < kKeys - 1) mask_future(scores, ahead);
    typename P::template Weights<kKeys> weights[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float correction[2];
      softmax[m].template add<P>(scores[m], correction, a.scale_log2);
      scale_rows(out[m], correction);
      weights[m].set(scores[m]);
    }
    P::weigh(out, weights, keys_of(tile) + kKeyTile, Tile::kLd);
  }

  __syncthreads();
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const int row = first + warp_row + 16 * m;
    if (row >= a.tokens) break;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_sum(softmax[m].sum[r]);
      factor[r] = 1.0f / sum;
      const int at = row + lane_id() / 4 + 8 * r;
      if (a.lse != nullptr && lane_id() % 4 == 0 && at < a.tokens) {
        a.lse[std::int64_t{head_of_all} * a.tokens + at] =
            kLn2 * (softmax[m].largest[r] + log2f(sum));
      }
    }
    const std::int64_t stride = std::int64_t{a.heads} * a.head_size;
    Tile::store(a.out + (std::int64_t{b} * a.tokens + row) * stride + head * a.head_size, stride,
                a.tokens - row, a.head_size, a.aligned, out[m], factor,
                shared + (warp_row + 16 * m) * Tile::kLd);
  }
}

}  // namespace llmc::cuda
