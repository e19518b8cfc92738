#pragma once

// The forward pass of flash_forward.cuh on Hopper, for heads of at most kHead elements: a block of
// two warp groups with 64 queries each; keys and values come by copies that one thread begins well
// ahead. While one warp group computes exponentials, others keep the tensor cores busy.

#include "ops/cuda/flash_forward.cuh"
#include "ops/cuda/hopper_tile.cuh"

namespace llmc::cuda {

struct HopperForwardArgs {
  __nv_bfloat16* out;
  float* lse;
  int tokens;
  int heads;
  int kv_heads;
  int head_size;
  float scale_log2;  ///< above 0
};

template <int kHead>
struct HopperForwardShape {
  static constexpr int kGroups = 2;
  static constexpr int kQueries = kGroups * kTileRows;
  static constexpr int kStages = 4;
  static constexpr int kThreads = kGroups * kWarpGroup;
  static constexpr int kBlocks = kHead > 64 ? 1 : 2;  ///< of a multiprocessor
  static constexpr int kTileBytes = kHopperTileBytes<kHead>;
  static constexpr int kBarriers = 1 + 3 * kStages;
  static constexpr int kBytes =
      (kGroups + kStages * 2) * kTileBytes + kBarriers * static_cast<int>(sizeof(Barrier));
};

/// qkv: boxes of 64 tokens of a head.
template <int kHead, class Shape = HopperForwardShape<kHead>>
__global__ __launch_bounds__(Shape::kThreads, Shape::kBlocks) void hopper_forward_kernel(
    const __grid_constant__ CUtensorMap qkv, const HopperForwardArgs a) {
#ifdef LLMC_HOPPER
  constexpr int kStages = Shape::kStages;
  extern __shared__ __align__(1024) unsigned char hopper_memory[];
  unsigned char* const queries = hopper_memory;
  unsigned char* const stages = queries + Shape::kGroups * Shape::kTileBytes;
  Barrier* const queries_full =
      reinterpret_cast<Barrier*>(stages + kStages * 2 * Shape::kTileBytes);
  Barrier* const keys_full = queries_full + 1;
  Barrier* const values_full = keys_full + kStages;
  Barrier* const empty = values_full + kStages;
  const auto keys_of = [&](int tile) { return stages + tile % kStages * 2 * Shape::kTileBytes; };
  const auto parity_of = [](int tile) { return tile / kStages % 2; };

  // The longest rows first, and the tiles of a head side by side.
  const int blocks_of_head = (a.tokens + Shape::kQueries - 1) / Shape::kQueries;
  const int head_of_all = static_cast<int>(blockIdx.x) / blocks_of_head;
  const int block = blocks_of_head - 1 - static_cast<int>(blockIdx.x) % blocks_of_head;
  const int head = head_of_all % a.heads;
  const int b = head_of_all / a.heads;
  const int k_head = a.heads + head / (a.heads / a.kv_heads);
  const int group = static_cast<int>(threadIdx.x) / kWarpGroup;
  const int own_tile = block * Shape::kGroups + group;
  const int all_tiles = (a.tokens + kTileRows - 1) / kTileRows;
  const int block_tiles = min(all_tiles, (block + 1) * Shape::kGroups);
  const int tiles = min(all_tiles, own_tile + 1);
  const auto load_keys = [&](int tile) {
    unsigned char* const to = keys_of(tile);
    Barrier* const k_barrier = keys_full + tile % kStages;
    Barrier* const v_barrier = values_full + tile % kStages;
    arrive_and_expect(k_barrier, Shape::kTileBytes);
    copy_tile<kHead>(to, &qkv, k_barrier, k_head, tile * kTileRows, b);
    arrive_and_expect(v_barrier, Shape::kTileBytes);
    copy_tile<kHead>(to + Shape::kTileBytes, &qkv, v_barrier, k_head + a.kv_heads, tile * kTileRows,
                     b);
  };

  if (threadIdx.x == 0) {
    start_barrier(queries_full, 1);
    for (int i = 0; i < kStages; ++i) {
      start_barrier(keys_full + i, 1);
      start_barrier(values_full + i, 1);
      start_barrier(empty + i, Shape::kThreads / kWarp);
    }
    publish_barriers();
    arrive_and_expect(queries_full, Shape::kGroups * Shape::kTileBytes);
    for (int i = 0; i < Shape::kGroups; ++i) {
      copy_tile<kHead>(queries + i * Shape::kTileBytes, &qkv, queries_full, head,
                       (block * Shape::kGroups + i) * kTileRows, b);
    }
    for (int tile = 0; tile < min(kStages, block_tiles); ++tile) load_keys(tile);
  }
  __syncthreads();

  unsigned char* const own_queries = queries + group * Shape::kTileBytes;
  const int warp_row = static_cast<int>(threadIdx.x) % kWarpGroup / kWarp * 16;
  Bf16Products::Rows<kHead> rows;
  Sums<8> scores[1];
  Sums<kHead / 8> out;
  clear(out);
  RunningSoftmax softmax;
  Bf16Products::Weights<kTileRows> weights;
  float correction[2];
  const auto begin_scores = [&](int tile) {
    wait_for_phase(keys_full + tile % kStages, parity_of(tile));
    begin_products();
    dot_tile<kHead>(scores[0], rows, keys_of(tile));
    end_product_group();
  };
  const auto begin_weighing = [&](int tile) {
    begin_products();
    weigh_tile(out, weights, keys_of(tile) + Shape::kTileBytes);
    end_product_group();
  };
  const auto use_scores = [&](int tile) {
    if (tile == own_tile) mask_future(scores, warp_row);
    softmax.template add<Bf16Products>(scores[0], correction, a.scale_log2);
    settle(scores[0]);
    wait_for_phase(values_full + tile % kStages, parity_of(tile));
  };
  wait_for_phase(queries_full, 0);
  load_rows(rows, own_queries, warp_row);
  begin_scores(0);
  wait_for_products<0>();
  settle(scores[0]);
  use_scores(0);
  weights.set(scores[0]);
  for (int tile = 1; tile < tiles; ++tile) {
    begin_scores(tile);
    begin_weighing(tile - 1);
    wait_for_products<1>();
    settle(scores[0]);
    use_scores(tile);  // while the values of the tile before are weighed
    wait_for_products<0>();
    settle(out);
    if (lane_id() == 0) arrive(empty + (tile - 1) % kStages);
    scale_rows(out, correction);
    weights.set(scores[0]);
    // Fills the stage that all warps left a tile ago.
    if (threadIdx.x == 0 && tile > 1 && tile - 2 + kStages < block_tiles) {
      wait_for_phase(empty + (tile - 2) % kStages, parity_of(tile - 2));
      load_keys(tile - 2 + kStages);
    }
    __syncwarp();
  }
  begin_weighing(tiles - 1);
  wait_for_products<0>();
  settle(out);

  const int row = own_tile * kTileRows + warp_row;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = row_sum(softmax.sum[r]);
    factor[r] = 1.0f / sum;
    const int at = row + lane_id() / 4 + 8 * r;
    if (a.lse != nullptr && lane_id() % 4 == 0 && at < a.tokens) {
      a.lse[std::int64_t{head_of_all} * a.tokens + at] = kLn2 * (softmax.largest[r] + log2f(sum));
    }
  }
  const std::int64_t stride = std::int64_t{a.heads} * a.head_size;
  store_tile(a.out + (std::int64_t{b} * a.tokens + row) * stride + head * a.head_size, stride,
             a.tokens - row, a.head_size, out, factor, own_queries + warp_row * kTileRowBytes);
#endif
}

}  // namespace llmc::cuda
