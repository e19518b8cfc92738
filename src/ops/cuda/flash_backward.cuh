#pragma once

// Backward attention in one pass. A block owns a tile of keys of one key head, each of its warps 16
// of them, and walks along the tiles of queries that see it, over all query heads of the group. It
// recomputes scoresᵀ and dscoresᵀ, 16 keys x queries a warp, so that they are left operands of dv
// and dk as they stand; dk and dv stay in registers. dq is summed over the key tiles in scratch by
// the blocks in turn, from the last key tile that a query tile sees to the first, which writes the
// result: always the same order, and the one in which the blocks arrive when they start together.

#include "ops/cuda/flash_tile.cuh"

namespace llmc::cuda {

template <class T>
struct FlashBackwardKernelArgs {
  T* dqkv;
  const T* dout;
  const T* qkv;
  const float2* rows;  ///< (B, NH, T): lse · log2(e), dout · out
  float* dq_sums;      ///< (B, NH, query tiles) times kDqSums
  int* turns;          ///< (B, NH, query tiles): blocks that have added to dq; 0 at first
  int* next_unit;      ///< 0 at first
  int tokens;
  int heads;
  int kv_heads;
  int head_size;
  bool aligned;
  float scale;
};

inline constexpr int kFlashBackwardKeys = 16 * kFlashWarps;

template <class P, int kHeadSize>
struct FlashBackwardShape {
  static constexpr int kHead = kHeadSize;
  using Tile = FlashTile<P, kHead>;
  static constexpr bool kIsBf16 = sizeof(typename P::Element) == 2;
  static constexpr int kKeys = kFlashBackwardKeys;
  static constexpr int kQueries = kIsBf16 ? (kHead <= 96 ? 64 : 32) : (kHead <= 64 ? 32 : 16);
  static_assert(kKeys % kQueries == 0);
  /// Queries whose scores a warp holds at once.
  static constexpr int kChunk = kIsBf16 && kHead <= 64 ? 32 : 16;
  /// Tiles of queries in shared memory.
  static constexpr int kStages = !kIsBf16 && kHead > 96 ? 1 : 2;
  /// Whether the warps keep their keys and values in registers.
  static constexpr bool kHoldKeys = P::kRowsInTile || kHead <= (kIsBf16 ? 64 : 32);
  /// Warps share dq of a tile by 16 queries and, where these are fewer, by columns.
  static constexpr int kDqWarps = kQueries / 16;
  static constexpr int kDqHead = kHead * kDqWarps / kFlashWarps;
  static constexpr int kDqSums = kQueries * kHead;

  static constexpr int kKeyTile = kKeys * Tile::kLd;
  static constexpr int kQueryTile = kQueries * Tile::kLd;
  static constexpr int kDscoresLd = kQueries + 8;
  static constexpr int kElements = 2 * kKeyTile + kStages * 2 * kQueryTile + kKeys * kDscoresLd;
  static constexpr std::size_t kBytes =
      kElements * sizeof(typename P::Element) + kStages * kQueries * sizeof(float2);
};

/// A warp's part of dq of a query tile, summed with those of the blocks before.
template <int N>
struct DqSums {
  Sums<N> at;

  /// Every thread finds what the same thread of another block wrote.
  __device__ __forceinline__ static float4* place(float* sums, int n) {
    return reinterpret_cast<float4*>(sums) + n * kFlashThreads + threadIdx.x;
  }
  __device__ __forceinline__ void load(float* sums) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float4 x = __ldcg(place(sums, n));
      at[n][0] = x.x;
      at[n][1] = x.y;
      at[n][2] = x.z;
      at[n][3] = x.w;
    }
  }
  __device__ __forceinline__ void store(float* sums) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      __stcg(place(sums, n), make_float4(at[n][0], at[n][1], at[n][2], at[n][3]));
    }
  }
};

/// Turns scores into probabilities and dprobabilities into dscores, those without the scale, of the
/// queries of query_rows. `ahead`: the first query minus the warp's first key.
template <class P, int N>
__device__ __forceinline__ void differentiate_softmax(Sums<N>& scores, Sums<N>& dscores,
                                                      const float2* query_rows, float scale_log2,
                                                      int ahead) {
  const int column = lane_id() % 4 * 2;
  const int row = lane_id() / 4;
  const bool masked = ahead < 15;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float4 two = *reinterpret_cast<const float4*>(query_rows + 8 * n + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float p = P::exp2(fmaf(scores[n][i], scale_log2, i % 2 == 0 ? -two.x : -two.z));
      if (masked && row + i / 2 * 8 > ahead + column + 8 * n + i % 2) p = 0.0f;
      scores[n][i] = p;
      dscores[n][i] = p * (dscores[n][i] - (i % 2 == 0 ? two.y : two.w));
    }
  }
}

template <class P, int kHeadSize>
__global__ __launch_bounds__(kFlashThreads) void flash_backward_kernel(
    const FlashBackwardKernelArgs<typename P::Element> a) {
  using Element = typename P::Element;
  using Shape = FlashBackwardShape<P, kHeadSize>;
  using Tile = typename Shape::Tile;
  constexpr int kHead = Shape::kHead;
  constexpr int kLd = Tile::kLd;
  constexpr int kQueries = Shape::kQueries;
  constexpr int kChunk = Shape::kChunk;
  constexpr int kStages = Shape::kStages;
  extern __shared__ uint4 shared_memory[];
  Element* const key_tile = reinterpret_cast<Element*>(shared_memory);
  Element* const value_tile = key_tile + Shape::kKeyTile;
  Element* const query_tiles = value_tile + Shape::kKeyTile;
  Element* const dscores_tile = query_tiles + kStages * 2 * Shape::kQueryTile;
  float2* const query_rows =
      reinterpret_cast<float2*>(dscores_tile + Shape::kKeys * Shape::kDscoresLd);
  __shared__ int shared_unit;

  // Units are taken in an order in which every block waits only for blocks that run already.
  if (threadIdx.x == 0) shared_unit = atomicAdd(a.next_unit, 1);
  __syncthreads();
  const int unit = shared_unit;
  const int tiles_of_keys = (a.tokens + Shape::kKeys - 1) / Shape::kKeys;
  const int tiles_of_queries = (a.tokens + kQueries - 1) / kQueries;
  const int key_index = tiles_of_keys - 1 - unit % tiles_of_keys;
  const int first_key = key_index * Shape::kKeys;
  const int kv_head = unit / tiles_of_keys % a.kv_heads;
  const std::int64_t b = unit / tiles_of_keys / a.kv_heads;
  const int group = a.heads / a.kv_heads;
  const std::int64_t qkv_token = std::int64_t{a.heads + 2 * a.kv_heads} * a.head_size;
  const std::int64_t out_token = std::int64_t{a.heads} * a.head_size;
  const std::int64_t k_at =
      (b * a.tokens + first_key) * qkv_token + (a.heads + kv_head) * a.head_size;
  const std::int64_t v_at = k_at + a.kv_heads * a.head_size;

  // Steps: the query tiles from the diagonal on, for one head after the other.
  const int first_tile = first_key / kQueries;
  const int steps_per_head = tiles_of_queries - first_tile;
  const int steps = group * steps_per_head;
  const auto head_of = [&](int step) { return kv_head * group + step / steps_per_head; };
  const auto tile_of = [&](int step) { return first_tile + step % steps_per_head; };
  const auto queries_of = [&](int step) {
    return query_tiles + step % kStages * 2 * Shape::kQueryTile;
  };
  const auto rows_of = [&](int step) { return query_rows + step % kStages * kQueries; };
  const auto load_queries = [&](int step) {
    const int head = head_of(step);
    const int first = tile_of(step) * kQueries;
    const int rows = a.tokens - first;
    Element* const to = queries_of(step);
    Tile::template load<kQueries>(to,
                                  a.qkv + (b * a.tokens + first) * qkv_token + head * a.head_size,
                                  qkv_token, rows, a.head_size, a.aligned);
    Tile::template load<kQueries>(to + Shape::kQueryTile,
                                  a.dout + (b * a.tokens + first) * out_token + head * a.head_size,
                                  out_token, rows, a.head_size, a.aligned);
    const int i = static_cast<int>(threadIdx.x);
    if (i < kQueries) {
      const float2* const from = a.rows + (b * a.heads + head) * a.tokens + first;
      copy_8_async(rows_of(step) + i, i < rows ? from + i : from, i < rows);
    }
    end_copy_group();
  };

  Tile::template load<Shape::kKeys>(key_tile, a.qkv + k_at, qkv_token, a.tokens - first_key,
                                    a.head_size, a.aligned);
  Tile::template load<Shape::kKeys>(value_tile, a.qkv + v_at, qkv_token, a.tokens - first_key,
                                    a.head_size, a.aligned);
  load_queries(0);
  wait_for_copies<0>();
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = 16 * warp;
  using Rows = typename P::template Rows<kHead>;
  Rows held[2][1];
  if constexpr (Shape::kHoldKeys) {
    held[0][0].load(key_tile + warp_row * kLd, kLd);
    held[1][0].load(value_tile + warp_row * kLd, kLd);
  }
  Sums<kHead / 8> dk[1];
  Sums<kHead / 8> dv[1];
  clear(dk[0]);
  clear(dv[0]);
  const float scale_log2 = a.scale * kLog2e;
  int* turn_to_end = nullptr;
  int turn = 0;

  for (int step = 0; step < steps; ++step) {
    if (step > 0) {
      wait_for_copies<0>();
      __syncthreads();
    }
    if (turn_to_end != nullptr && threadIdx.x == 0) {
      __threadfence();
      store_shared_by_blocks(turn_to_end, turn + 1);
    }
    if (kStages > 1 && step + 1 < steps) load_queries(step + 1);
    const int tile = tile_of(step);
    const Element* const queries = queries_of(step);
    const Element* const douts = queries + Shape::kQueryTile;
    const float2* const rows = rows_of(step);

#pragma unroll
    for (int chunk = 0; chunk < kQueries; chunk += kChunk) {
      const int ahead = tile * kQueries + chunk - first_key - warp_row;
      typename P::template Weights<kChunk> weights[1];
      Sums<kChunk / 8> scores[1];
      Sums<kChunk / 8> dscores[1];
      clear(scores[0]);
      clear(dscores[0]);
      if (ahead + kChunk <= 0) {  // no query of the chunk sees a key of the warp
        weights[0].set(dscores[0]);
        weights[0].store(dscores_tile + warp_row * Shape::kDscoresLd + chunk, Shape::kDscoresLd);
        continue;
      }
      const auto dots = [&](const Rows(&keys)[1], const Rows(&values)[1]) {
        P::dot(scores, keys, queries + chunk * kLd, kLd);
        P::dot(dscores, values, douts + chunk * kLd, kLd);
      };
      if constexpr (Shape::kHoldKeys) {
        dots(held[0], held[1]);
      } else {
        Rows loaded[2][1];
        loaded[0][0].load(key_tile + warp_row * kLd, kLd);
        loaded[1][0].load(value_tile + warp_row * kLd, kLd);
        dots(loaded[0], loaded[1]);
      }
      differentiate_softmax<P>(scores[0], dscores[0], rows + chunk, scale_log2, ahead);
      weights[0].set(scores[0]);
      P::weigh(dv, weights, douts + chunk * kLd, kLd);
      weights[0].set(dscores[0]);
      weights[0].store(dscores_tile + warp_row * Shape::kDscoresLd + chunk, Shape::kDscoresLd);
      P::weigh(dk, weights, queries + chunk * kLd, kLd);
    }

    // The diagonal's key tile is the first to add to dq, tile 0 the last.
    const std::int64_t of_all = (b * a.heads + head_of(step)) * tiles_of_queries + tile;
    turn = tile * kQueries / Shape::kKeys - key_index;
    if (turn > 0 && threadIdx.x == 0) {
      while (load_shared_by_blocks(a.turns + of_all) != turn) {
      }
      __threadfence();
    }
    __syncthreads();
    if (kStages == 1 && step + 1 < steps) load_queries(step + 1);
    DqSums<Shape::kDqHead / 8> dq;
    float* const sums = a.dq_sums + of_all * Shape::kDqSums;
    if (turn > 0) {
      dq.load(sums);
    } else {
      clear(dq.at);
    }
    const int dq_row = warp % Shape::kDqWarps * 16;
    const int dq_column = warp / Shape::kDqWarps * Shape::kDqHead;
    P::template weigh_columns<Shape::kKeys>(dq.at, dscores_tile + dq_row, Shape::kDscoresLd,
                                            key_tile + dq_column, kLd);
    turn_to_end = nullptr;
    if (key_index > 0) {
      dq.store(sums);
      turn_to_end = a.turns + of_all;
    } else {
      const std::int64_t first = b * a.tokens + tile * kQueries + dq_row;
      Element* const to = a.dqkv + first * qkv_token + head_of(step) * a.head_size + dq_column;
      store_sums(to, qkv_token, a.tokens - tile * kQueries - dq_row, a.head_size - dq_column,
                 a.aligned, dq.at, a.scale);
    }
  }

  __syncthreads();
  if (turn_to_end != nullptr && threadIdx.x == 0) {
    __threadfence();
    store_shared_by_blocks(turn_to_end, turn + 1);
  }
  const int key_rows = a.tokens - first_key - warp_row;
  const float one[2] = {1.0f, 1.0f};
  const float scale[2] = {a.scale, a.scale};
  Tile::store(a.dqkv + k_at + warp_row * qkv_token, qkv_token, key_rows, a.head_size, a.aligned,
              dk[0], scale, key_tile + warp_row * kLd);
  Tile::store(a.dqkv + v_at + warp_row * qkv_token, qkv_token, key_rows, a.head_size, a.aligned,
              dv[0], one, value_tile + warp_row * kLd);
}

}  // namespace llmc::cuda
