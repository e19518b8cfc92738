#pragma once

// The backward pass on Hopper, for heads of at most kHead elements, as two kernels whose blocks are
// one warp group: one owns 64 keys and walks along the queries for dk and dv, the other owns 64
// queries and walks along the keys for dq. Each recomputes the probabilities, so that no sum is
// shared between blocks; that costs two products of seven and saves the traffic of partial sums.

#include "ops/cuda/hopper_tile.cuh"

namespace llmc::cuda {

struct HopperBackwardArgs {
  __nv_bfloat16* dqkv;
  const float2* rows;  ///< (B, NH, padded_tokens): lse · log2(e), dout · out; inf, 0 at the end
  int tokens;
  int padded_tokens;  ///< a multiple of 64
  int heads;
  int kv_heads;
  int head_size;
  float scale;
};

template <int kHead>
struct HopperBackwardShape {
  static constexpr int kBlocks = kHead > 64 ? 2 : 3;  ///< of a multiprocessor
  static constexpr int kStages = kHead > 64 ? 2 : 3;
  static constexpr int kTileBytes = kHopperTileBytes<kHead>;
  static constexpr int kRowBytes = kTileRows * static_cast<int>(sizeof(float2));
  static constexpr int kBarriers = 1 + 2 * kStages;
  /// Two tiles that stay, and stages of two tiles and row values.
  static constexpr int kBytes = (2 + kStages * 2) * kTileBytes + kStages * kRowBytes +
                                kBarriers * static_cast<int>(sizeof(Barrier));
};

/// The shared memory of a block and the barriers that say what it holds.
template <int kHead>
struct HopperBackwardMemory {
  using Shape = HopperBackwardShape<kHead>;
  static constexpr int kStages = Shape::kStages;

  unsigned char* fixed;  ///< two tiles
  unsigned char* stages;
  unsigned char* row_values;
  Barrier* fixed_full;
  Barrier* full;
  Barrier* empty;

  __device__ explicit HopperBackwardMemory(unsigned char* memory)
      : fixed(memory),
        stages(fixed + 2 * Shape::kTileBytes),
        row_values(stages + kStages * 2 * Shape::kTileBytes),
        fixed_full(reinterpret_cast<Barrier*>(row_values + kStages * Shape::kRowBytes)),
        full(fixed_full + 1),
        empty(full + kStages) {}

  __device__ void start_barriers() const {
    start_barrier(fixed_full, 1);
    for (int i = 0; i < kStages; ++i) {
      start_barrier(full + i, 1);
      start_barrier(empty + i, kWarpGroup / kWarp);
    }
    publish_barriers();
  }
  __device__ unsigned char* tiles(int step) const {
    return stages + step % kStages * 2 * Shape::kTileBytes;
  }
  __device__ float2* rows(int step) const {
    return reinterpret_cast<float2*>(row_values + step % kStages * Shape::kRowBytes);
  }
  __device__ void wait_full(int step) const {
    wait_for_phase(full + step % kStages, step / kStages % 2);
  }
  __device__ void wait_empty(int step) const {
    wait_for_phase(empty + step % kStages, step / kStages % 2);
  }
};

/// qkv, dout: boxes of 64 tokens of a head.
template <int kHead, class Shape = HopperBackwardShape<kHead>>
__global__ __launch_bounds__(kWarpGroup, Shape::kBlocks) void hopper_dkdv_kernel(
    const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
    const HopperBackwardArgs a) {
#ifdef LLMC_HOPPER
  constexpr int kStages = Shape::kStages;
  extern __shared__ __align__(1024) unsigned char hopper_memory[];
  const HopperBackwardMemory<kHead> memory(hopper_memory);
  unsigned char* const keys = memory.fixed;
  unsigned char* const values = memory.fixed + Shape::kTileBytes;

  // The keys that most queries see first.
  const int tiles = a.padded_tokens / kTileRows;
  const int key_tile = static_cast<int>(blockIdx.x) % tiles;
  const int kv_head = static_cast<int>(blockIdx.x) / tiles % a.kv_heads;
  const int b = static_cast<int>(blockIdx.x) / tiles / a.kv_heads;
  const int group = a.heads / a.kv_heads;
  const int k_head = a.heads + kv_head;
  // Steps: the query tiles from the diagonal on, for one head after the other.
  const int steps_per_head = tiles - key_tile;
  const int steps = group * steps_per_head;
  const auto load_queries = [&](int step) {
    const int head = kv_head * group + step / steps_per_head;
    const int first = (key_tile + step % steps_per_head) * kTileRows;
    Barrier* const barrier = memory.full + step % kStages;
    arrive_and_expect(barrier, 2 * Shape::kTileBytes + Shape::kRowBytes);
    copy_tile<kHead>(memory.tiles(step), &qkv, barrier, head, first, b);
    copy_tile<kHead>(memory.tiles(step) + Shape::kTileBytes, &dout, barrier, head, first, b);
    copy_bytes(memory.rows(step),
               a.rows + (std::int64_t{b} * a.heads + head) * a.padded_tokens + first,
               Shape::kRowBytes, barrier);
  };
  if (threadIdx.x == 0) {
    memory.start_barriers();
    arrive_and_expect(memory.fixed_full, 2 * Shape::kTileBytes);
    copy_tile<kHead>(keys, &qkv, memory.fixed_full, k_head, key_tile * kTileRows, b);
    copy_tile<kHead>(values, &qkv, memory.fixed_full, k_head + a.kv_heads, key_tile * kTileRows, b);
    for (int step = 0; step < min(kStages, steps); ++step) load_queries(step);
  }
  __syncthreads();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const float scale_log2 = a.scale * kLog2e;
  Sums<kHead / 8> dk;
  Sums<kHead / 8> dv;
  clear(dk);
  clear(dv);
  Sums<8> scores;  // keys x queries
  Sums<8> dscores;
  Bf16Products::Weights<kTileRows> p;
  Bf16Products::Weights<kTileRows> ds;
  wait_for_phase(memory.fixed_full, 0);
  for (int step = 0; step < steps; ++step) {
    const unsigned char* const queries = memory.tiles(step);
    const unsigned char* const douts = queries + Shape::kTileBytes;
    memory.wait_full(step);
    begin_products();
    dot_tile<kHead>(scores, keys, queries);
    end_product_group();
    begin_products();
    dot_tile<kHead>(dscores, values, douts);
    end_product_group();
    wait_for_products<1>();
    settle(scores);
    const float4* const rows =
        reinterpret_cast<const float4*>(memory.rows(step) + lane_id() % 4 * 2);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float4 two = rows[4 * n];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = exp2_approx(fmaf(scores[n][i], scale_log2, i % 2 == 0 ? -two.x : -two.z));
      }
    }
    if (step % steps_per_head == 0) {
      // Row 8 (i / 2) of column 8n + i % 2, beside this lane's.
      const int ahead = lane_id() % 4 * 2 - warp_row - lane_id() / 4;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i / 2 * 8 > ahead + 8 * n + i % 2) scores[n][i] = 0.0f;
        }
      }
    }
    p.set(scores);
    wait_for_products<0>();
    settle(dscores);
    begin_products();
    weigh_tile(dv, p, douts);
    end_product_group();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float4 two = rows[4 * n];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        dscores[n][i] = scores[n][i] * (dscores[n][i] - (i % 2 == 0 ? two.y : two.w));
      }
    }
    ds.set(dscores);
    begin_products();
    weigh_tile(dk, ds, queries);
    end_product_group();
    wait_for_products<0>();
    settle(dv);
    settle(dk);
    if (lane_id() == 0) arrive(memory.empty + step % kStages);
    // Fills the stage of this step anew.
    if (threadIdx.x == 0 && step + kStages < steps) {
      memory.wait_empty(step);
      load_queries(step + kStages);
    }
    __syncwarp();
  }

  // All warps are done with the keys and values, whose place the results pass through.
  __syncthreads();
  const std::int64_t stride = std::int64_t{a.heads + 2 * a.kv_heads} * a.head_size;
  const int first = key_tile * kTileRows + warp_row;
  __nv_bfloat16* const to =
      a.dqkv + (std::int64_t{b} * a.tokens + first) * stride + k_head * a.head_size;
  const float scale[2] = {a.scale, a.scale};
  const float one[2] = {1.0f, 1.0f};
  store_tile(to, stride, a.tokens - first, a.head_size, dk, scale, keys + warp_row * kTileRowBytes);
  store_tile(to + a.kv_heads * a.head_size, stride, a.tokens - first, a.head_size, dv, one,
             values + warp_row * kTileRowBytes);
#endif
}

/// qkv, dout: boxes of 64 tokens of a head.
template <int kHead, class Shape = HopperBackwardShape<kHead>>
__global__ __launch_bounds__(kWarpGroup, Shape::kBlocks) void hopper_dq_kernel(
    const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
    const HopperBackwardArgs a) {
#ifdef LLMC_HOPPER
  constexpr int kStages = Shape::kStages;
  extern __shared__ __align__(1024) unsigned char hopper_memory[];
  const HopperBackwardMemory<kHead> memory(hopper_memory);
  unsigned char* const queries = memory.fixed;
  unsigned char* const douts = memory.fixed + Shape::kTileBytes;

  // The longest rows first.
  const int tiles = a.padded_tokens / kTileRows;
  const int head_of_all = static_cast<int>(blockIdx.x) / tiles;
  const int query_tile = tiles - 1 - static_cast<int>(blockIdx.x) % tiles;
  const int head = head_of_all % a.heads;
  const int b = head_of_all / a.heads;
  const int k_head = a.heads + head / (a.heads / a.kv_heads);
  const auto load_keys = [&](int tile) {
    Barrier* const barrier = memory.full + tile % kStages;
    arrive_and_expect(barrier, 2 * Shape::kTileBytes);
    copy_tile<kHead>(memory.tiles(tile), &qkv, barrier, k_head, tile * kTileRows, b);
    copy_tile<kHead>(memory.tiles(tile) + Shape::kTileBytes, &qkv, barrier, k_head + a.kv_heads,
                     tile * kTileRows, b);
  };
  if (threadIdx.x == 0) {
    memory.start_barriers();
    arrive_and_expect(memory.fixed_full, 2 * Shape::kTileBytes);
    copy_tile<kHead>(queries, &qkv, memory.fixed_full, head, query_tile * kTileRows, b);
    copy_tile<kHead>(douts, &dout, memory.fixed_full, head, query_tile * kTileRows, b);
    for (int tile = 0; tile < min(kStages, query_tile + 1); ++tile) load_keys(tile);
  }
  __syncthreads();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const float scale_log2 = a.scale * kLog2e;
  float2 row_values[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    row_values[r] = a.rows[std::int64_t{head_of_all} * a.padded_tokens + query_tile * kTileRows +
                           warp_row + lane_id() / 4 + 8 * r];
  }
  Sums<kHead / 8> dq;
  clear(dq);
  Sums<8> scores;
  Sums<8> dscores;
  Bf16Products::Rows<kHead> query_rows;
  Bf16Products::Weights<kTileRows> ds;
  const auto begin_scores = [&](int tile) {
    memory.wait_full(tile);
    begin_products();
    dot_tile<kHead>(scores, query_rows, memory.tiles(tile));
    dot_tile<kHead>(dscores, douts, memory.tiles(tile) + Shape::kTileBytes);
    end_product_group();
  };
  const auto begin_weighing = [&](int tile) {
    begin_products();
    weigh_tile(dq, ds, memory.tiles(tile));
    end_product_group();
  };
  const auto use_scores = [&](int tile) {
    settle(scores);
    settle(dscores);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = exp2_approx(fmaf(scores[n][i], scale_log2, -row_values[i / 2].x));
      }
    }
    if (tile == query_tile) {
      // Column 8n + i % 2 of row 8 (i / 2), beside this lane's.
      const int ahead = warp_row + lane_id() / 4 - lane_id() % 4 * 2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (8 * n + i % 2 > ahead + i / 2 * 8) scores[n][i] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        dscores[n][i] = scores[n][i] * (dscores[n][i] - row_values[i / 2].y);
      }
    }
    settle(dscores);
  };
  wait_for_phase(memory.fixed_full, 0);
  load_rows(query_rows, queries, warp_row);
  begin_scores(0);
  wait_for_products<0>();
  use_scores(0);
  ds.set(dscores);
  for (int tile = 1; tile <= query_tile; ++tile) {
    begin_scores(tile);
    begin_weighing(tile - 1);
    wait_for_products<1>();
    use_scores(tile);  // while the keys of the tile before are weighed
    wait_for_products<0>();
    settle(dq);
    if (lane_id() == 0) arrive(memory.empty + (tile - 1) % kStages);
    ds.set(dscores);
    // Fills the stage of the tile before anew.
    if (threadIdx.x == 0 && tile - 1 + kStages <= query_tile) {
      memory.wait_empty(tile - 1);
      load_keys(tile - 1 + kStages);
    }
    __syncwarp();
  }
  begin_weighing(query_tile);
  wait_for_products<0>();
  settle(dq);

  const std::int64_t stride = std::int64_t{a.heads + 2 * a.kv_heads} * a.head_size;
  const int first = query_tile * kTileRows + warp_row;
  const float scale[2] = {a.scale, a.scale};
  store_tile(a.dqkv + (std::int64_t{b} * a.tokens + first) * stride + head * a.head_size, stride,
             a.tokens - first, a.head_size, dq, scale, queries + warp_row * kTileRowBytes);
#endif
}

}  // namespace llmc::cuda
