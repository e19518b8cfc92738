#pragma once

// Backward attention in two kernels, neither of which shares a sum between blocks. A block of the
// one owns 64 keys of a key head, 16 a warp, and walks along the queries that see them, over all
// query heads of the group, for dk and dv; a block of the other owns 64 queries and walks along the
// keys for dq. Both recompute the scores. The first has them transposed, keys x queries, so that
// probabilities and dscores are left operands of dv and dk as they stand in registers.

#include "ops/cuda/flash_tile.cuh"

namespace llmc::cuda {

template <class T>
struct FlashBackwardKernelArgs {
  T* dqkv;
  const T* dout;
  const T* qkv;
  const float2* rows;  ///< (B, NH, padded_tokens): lse · log2(e), dout · out; inf, 0 at the end
  int tokens;
  int padded_tokens;  ///< a multiple of kFlashRows
  int heads;
  int kv_heads;
  int head_size;
  bool aligned;
  float scale;
};

/// Rows that a block owns.
inline constexpr int kFlashRows = 16 * kFlashWarps;

/// Two tiles of kFlashRows stay in shared memory, pairs of tiles of kMoving rows pass.
template <class P, int kHeadSize>
struct FlashBackwardShape {
  static constexpr int kHead = kHeadSize;
  using Tile = FlashTile<P, kHead>;
  static constexpr bool kIsBf16 = sizeof(typename P::Element) == 2;
  static constexpr int kMoving = kIsBf16 ? (kHead <= 96 ? 64 : 32) : (kHead <= 64 ? 32 : 16);
  static_assert(kFlashRows % kMoving == 0);
  /// Columns of scores that a warp holds at once.
  static constexpr int kChunk = kIsBf16 && kHead <= 64 ? 32 : 16;
  static constexpr int kStages = !kIsBf16 && kHead > 96 ? 1 : 2;
  /// Whether the warps keep their rows of the fixed tiles in registers.
  static constexpr bool kHold = P::kRowsInTile || kHead <= (kIsBf16 ? 64 : 32);

  static constexpr int kFixedTile = kFlashRows * Tile::kLd;
  static constexpr int kMovingTile = kMoving * Tile::kLd;
  static constexpr int kElements = 2 * kFixedTile + kStages * 2 * kMovingTile;
  static constexpr std::size_t kBytes =
      kElements * sizeof(typename P::Element) + kStages * kMoving * sizeof(float2);
};

/// A warp's 16 rows of both fixed tiles as left operands, held or loaded for every use.
template <class P, int kHeadSize>
struct FixedRows {
  using Shape = FlashBackwardShape<P, kHeadSize>;
  using Element = typename P::Element;
  using Rows = typename P::template Rows<kHeadSize>;
  static constexpr int kLd = Shape::Tile::kLd;

  const Element* tile;  ///< the warp's rows of the first tile
  Rows held[2][1];

  __device__ __forceinline__ explicit FixedRows(const Element* own) : tile(own) {
    if constexpr (Shape::kHold) {
      held[0][0].load(tile, kLd);
      held[1][0].load(tile + Shape::kFixedTile, kLd);
    }
  }

  /// first = first tile · aᵀ, second = second tile · bᵀ.
  template <int N>
  __device__ __forceinline__ void dot(Sums<N> (&first)[1], const Element* a, Sums<N> (&second)[1],
                                      const Element* b) const {
    clear(first[0]);
    clear(second[0]);
    if constexpr (Shape::kHold) {
      P::dot(first, held[0], a, kLd);
      P::dot(second, held[1], b, kLd);
    } else {
      Rows rows[1];
      rows[0].load(tile, kLd);
      P::dot(first, rows, a, kLd);
      rows[0].load(tile + Shape::kFixedTile, kLd);
      P::dot(second, rows, b, kLd);
    }
  }
};

template <class P, int kHeadSize>
__global__ __launch_bounds__(kFlashThreads) void flash_dkdv_kernel(
    const FlashBackwardKernelArgs<typename P::Element> a) {
  using Element = typename P::Element;
  using Shape = FlashBackwardShape<P, kHeadSize>;
  using Tile = typename Shape::Tile;
  constexpr int kLd = Tile::kLd;
  constexpr int kQueries = Shape::kMoving;
  constexpr int kChunk = Shape::kChunk;
  constexpr int kStages = Shape::kStages;
  extern __shared__ uint4 shared_memory[];
  Element* const key_tile = reinterpret_cast<Element*>(shared_memory);
  Element* const value_tile = key_tile + Shape::kFixedTile;
  Element* const query_tiles = value_tile + Shape::kFixedTile;
  float2* const query_rows =
      reinterpret_cast<float2*>(query_tiles + kStages * 2 * Shape::kMovingTile);

  // The keys that most queries see first.
  const int key_tiles = a.padded_tokens / kFlashRows;
  const int first_key = static_cast<int>(blockIdx.x) % key_tiles * kFlashRows;
  const int kv_head = static_cast<int>(blockIdx.x) / key_tiles % a.kv_heads;
  const std::int64_t b = static_cast<int>(blockIdx.x) / key_tiles / a.kv_heads;
  const int group = a.heads / a.kv_heads;
  const std::int64_t qkv_token = std::int64_t{a.heads + 2 * a.kv_heads} * a.head_size;
  const std::int64_t out_token = std::int64_t{a.heads} * a.head_size;
  const std::int64_t k_at =
      (b * a.tokens + first_key) * qkv_token + (a.heads + kv_head) * a.head_size;
  const std::int64_t v_at = k_at + a.kv_heads * a.head_size;

  // Steps: the query tiles from the diagonal on, for one head after the other.
  const int steps_per_head = (a.tokens - first_key + kQueries - 1) / kQueries;
  const int steps = group * steps_per_head;
  const auto queries_of = [&](int step) {
    return query_tiles + step % kStages * 2 * Shape::kMovingTile;
  };
  const auto rows_of = [&](int step) { return query_rows + step % kStages * kQueries; };
  const auto load_queries = [&](int step) {
    const int head = kv_head * group + step / steps_per_head;
    const int first = first_key + step % steps_per_head * kQueries;
    const int rows = a.tokens - first;
    Element* const to = queries_of(step);
    Tile::template load<kQueries>(to,
                                  a.qkv + (b * a.tokens + first) * qkv_token + head * a.head_size,
                                  qkv_token, rows, a.head_size, a.aligned);
    Tile::template load<kQueries>(to + Shape::kMovingTile,
                                  a.dout + (b * a.tokens + first) * out_token + head * a.head_size,
                                  out_token, rows, a.head_size, a.aligned);
    if (const int i = static_cast<int>(threadIdx.x); i < kQueries / 2) {  // two rows in 16 bytes
      copy_16_async(rows_of(step) + 2 * i,
                    a.rows + (b * a.heads + head) * a.padded_tokens + first + 2 * i, true);
    }
    end_copy_group();
  };

  Tile::template load<kFlashRows>(key_tile, a.qkv + k_at, qkv_token, a.tokens - first_key,
                                  a.head_size, a.aligned);
  Tile::template load<kFlashRows>(value_tile, a.qkv + v_at, qkv_token, a.tokens - first_key,
                                  a.head_size, a.aligned);
  load_queries(0);
  wait_for_copies<0>();
  __syncthreads();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const FixedRows<P, kHeadSize> fixed(key_tile + warp_row * kLd);
  Sums<kHeadSize / 8> dk[1];
  Sums<kHeadSize / 8> dv[1];
  clear(dk[0]);
  clear(dv[0]);
  const float scale_log2 = a.scale * kLog2e;
  for (int step = 0; step < steps; ++step) {
    if (kStages == 1 && step > 0) {
      __syncthreads();
      load_queries(step);
    }
    if (step > 0) {
      wait_for_copies<0>();
      __syncthreads();
    }
    if (kStages > 1 && step + 1 < steps) load_queries(step + 1);
    const Element* const queries = queries_of(step);
    const Element* const douts = queries + Shape::kMovingTile;
#pragma unroll
    for (int chunk = 0; chunk < kQueries; chunk += kChunk) {
      // The first query of the chunk minus the warp's first key.
      const int ahead = step % steps_per_head * kQueries + chunk - warp_row;
      if (ahead + kChunk <= 0) continue;
      Sums<kChunk / 8> scores[1];
      Sums<kChunk / 8> dscores[1];
      fixed.dot(scores, queries + chunk * kLd, dscores, douts + chunk * kLd);
      const int row = lane_id() / 4;
      const int column = lane_id() % 4 * 2;
      const bool masked = ahead < 15;
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
        const float4 two = *reinterpret_cast<const float4*>(rows_of(step) + chunk + 8 * n + column);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float lse_log2 = i % 2 == 0 ? two.x : two.z;
          const float mean = i % 2 == 0 ? two.y : two.w;
          float p = P::exp2(fmaf(scores[0][n][i], scale_log2, -lse_log2));
          if (masked && row + i / 2 * 8 > ahead + column + 8 * n + i % 2) p = 0.0f;
          scores[0][n][i] = p;
          dscores[0][n][i] = p * (dscores[0][n][i] - mean);
        }
      }
      typename P::template Weights<kChunk> weights[1];
      weights[0].set(scores[0]);
      P::weigh(dv, weights, douts + chunk * kLd, kLd);
      weights[0].set(dscores[0]);
      P::weigh(dk, weights, queries + chunk * kLd, kLd);
    }
  }

  // All warps are done with the keys and values, whose place the results pass through.
  __syncthreads();
  const int rows = a.tokens - first_key - warp_row;
  const float one[2] = {1.0f, 1.0f};
  const float scale[2] = {a.scale, a.scale};
  Tile::store(a.dqkv + k_at + warp_row * qkv_token, qkv_token, rows, a.head_size, a.aligned, dk[0],
              scale, key_tile + warp_row * kLd);
  Tile::store(a.dqkv + v_at + warp_row * qkv_token, qkv_token, rows, a.head_size, a.aligned, dv[0],
              one, value_tile + warp_row * kLd);
}

template <class P, int kHeadSize>
__global__ __launch_bounds__(kFlashThreads) void flash_dq_kernel(
    const FlashBackwardKernelArgs<typename P::Element> a) {
  using Element = typename P::Element;
  using Shape = FlashBackwardShape<P, kHeadSize>;
  using Tile = typename Shape::Tile;
  constexpr int kLd = Tile::kLd;
  constexpr int kKeys = Shape::kMoving;
  constexpr int kChunk = Shape::kChunk;
  constexpr int kStages = Shape::kStages;
  extern __shared__ uint4 shared_memory[];
  Element* const query_tile = reinterpret_cast<Element*>(shared_memory);
  Element* const dout_tile = query_tile + Shape::kFixedTile;
  Element* const key_tiles = dout_tile + Shape::kFixedTile;

  // The longest rows first.
  const int query_tiles = a.padded_tokens / kFlashRows;
  const int head_of_all = static_cast<int>(blockIdx.x) / query_tiles;
  const int first = (query_tiles - 1 - static_cast<int>(blockIdx.x) % query_tiles) * kFlashRows;
  const int head = head_of_all % a.heads;
  const std::int64_t b = head_of_all / a.heads;
  const int kv_head = head / (a.heads / a.kv_heads);
  const std::int64_t qkv_token = std::int64_t{a.heads + 2 * a.kv_heads} * a.head_size;
  const std::int64_t out_token = std::int64_t{a.heads} * a.head_size;
  const std::int64_t q_at = (b * a.tokens + first) * qkv_token + head * a.head_size;
  const std::int64_t out_at = (b * a.tokens + first) * out_token + head * a.head_size;
  const int rows = a.tokens - first;

  const int steps = (min(first + kFlashRows, a.tokens) + kKeys - 1) / kKeys;
  const auto keys_of = [&](int step) {
    return key_tiles + step % kStages * 2 * Shape::kMovingTile;
  };
  const auto load_keys = [&](int step) {
    const std::int64_t at =
        (b * a.tokens + step * kKeys) * qkv_token + (a.heads + kv_head) * a.head_size;
    Element* const to = keys_of(step);
    Tile::template load<kKeys>(to, a.qkv + at, qkv_token, a.tokens - step * kKeys, a.head_size,
                               a.aligned);
    Tile::template load<kKeys>(to + Shape::kMovingTile, a.qkv + at + a.kv_heads * a.head_size,
                               qkv_token, a.tokens - step * kKeys, a.head_size, a.aligned);
    end_copy_group();
  };

  Tile::template load<kFlashRows>(query_tile, a.qkv + q_at, qkv_token, rows, a.head_size,
                                  a.aligned);
  Tile::template load<kFlashRows>(dout_tile, a.dout + out_at, out_token, rows, a.head_size,
                                  a.aligned);
  load_keys(0);
  wait_for_copies<0>();
  __syncthreads();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const FixedRows<P, kHeadSize> fixed(query_tile + warp_row * kLd);
  float2 row_values[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    row_values[r] = a.rows[std::int64_t{head_of_all} * a.padded_tokens + first + warp_row +
                           lane_id() / 4 + 8 * r];
  }
  Sums<kHeadSize / 8> dq[1];
  clear(dq[0]);
  const float scale_log2 = a.scale * kLog2e;
  for (int step = 0; step < steps; ++step) {
    if (kStages == 1 && step > 0) {
      __syncthreads();
      load_keys(step);
    }
    if (step > 0) {
      wait_for_copies<0>();
      __syncthreads();
    }
    if (kStages > 1 && step + 1 < steps) load_keys(step + 1);
    const Element* const keys = keys_of(step);
    const Element* const values = keys + Shape::kMovingTile;
#pragma unroll
    for (int chunk = 0; chunk < kKeys; chunk += kChunk) {
      // The warp's first query minus the first key of the chunk.
      const int ahead = first + warp_row - step * kKeys - chunk;
      if (ahead + 16 <= 0) continue;
      Sums<kChunk / 8> scores[1];
      Sums<kChunk / 8> dscores[1];
      fixed.dot(scores, keys + chunk * kLd, dscores, values + chunk * kLd);
      const int row = lane_id() / 4;
      const int column = lane_id() % 4 * 2;
      const bool masked = ahead < kChunk - 1;
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 values_of_row = row_values[i / 2];
          float p = P::exp2(fmaf(scores[0][n][i], scale_log2, -values_of_row.x));
          if (masked && column + 8 * n + i % 2 > ahead + row + i / 2 * 8) p = 0.0f;
          dscores[0][n][i] = p * (dscores[0][n][i] - values_of_row.y);
        }
      }
      typename P::template Weights<kChunk> weights[1];
      weights[0].set(dscores[0]);
      P::weigh(dq, weights, keys + chunk * kLd, kLd);
    }
  }

  // All warps are done with the queries, whose place the result passes through.
  __syncthreads();
  const float scale[2] = {a.scale, a.scale};
  Tile::store(a.dqkv + q_at + warp_row * qkv_token, qkv_token, rows - warp_row, a.head_size,
              a.aligned, dq[0], scale, query_tile + warp_row * kLd);
}

}  // namespace llmc::cuda
