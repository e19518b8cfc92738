#pragma once

// Launches of the flash attention kernels for one kind of product.

#include <algorithm>
#include <cmath>

#include "ops/cuda/flash_attention.h"
#include "ops/cuda/flash_backward.cuh"
#include "ops/cuda/flash_forward.cuh"

namespace llmc::cuda {

/// Calls fn(std::integral_constant<int, N>) with the least built N that holds a head.
template <class Fn>
auto with_padded_head(std::int64_t head_size, const Fn& fn) {
  if (head_size <= 32) return fn(std::integral_constant<int, 32>());
  if (head_size <= 64) return fn(std::integral_constant<int, 64>());
  if (head_size <= 96) return fn(std::integral_constant<int, 96>());
  return fn(std::integral_constant<int, 128>());
}

/// Where the parts of FlashBackward::scratch begin, in bytes.
struct FlashScratch {
  std::int64_t rows;
  std::int64_t dq_sums;
  std::int64_t turns;  ///< followed by next_unit
  std::int64_t bytes;

  /// Least number of queries in a tile.
  static constexpr std::int64_t kLeastQueries = 16;

  FlashScratch(std::int64_t all_heads, std::int64_t tokens, std::int64_t head_size) {
    const std::int64_t head =
        with_padded_head(head_size, [](auto padded) { return std::int64_t{padded()}; });
    const auto aligned = [](std::int64_t n) { return ceil_div(n, 64) * 64; };
    const std::int64_t padded_tokens = ceil_div(tokens, kFlashBackwardKeys) * kFlashBackwardKeys;
    rows = 0;
    dq_sums = aligned(all_heads * tokens * static_cast<std::int64_t>(sizeof(float2)));
    turns = dq_sums + all_heads * padded_tokens * head * static_cast<std::int64_t>(sizeof(float));
    bytes = turns + aligned(static_cast<std::int64_t>(sizeof(int)) *
                            (all_heads * (padded_tokens / kLeastQueries) + 1));
  }
};

/// Prepares the backward kernel: rows of (lse · log2(e), dout · out), and zeros in `zeros`. kLanes
/// lanes take a row of dout and out, which are (B, T, NH, HS).
template <class T>
__global__ void flash_prepare_kernel(float2* rows, int* zeros, std::int64_t n_zeros, const T* dout,
                                     const T* out, const float* lse, std::int64_t n_rows,
                                     int tokens, int heads, int head_size, bool aligned) {
  constexpr int kLanes = 8;
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread < n_zeros) zeros[thread] = 0;
  const std::int64_t row = thread / kLanes;
  const int lane = static_cast<int>(thread % kLanes);
  float sum = 0.0f;
  if (row < n_rows) {
    const T* const x = dout + row * head_size;
    const T* const y = out + row * head_size;
    if (aligned) {
      for (int i = lane * kVec<T>; i < head_size; i += kLanes * kVec<T>) {
        const auto dx = Vec<T>::load(x + i);
        const auto dy = Vec<T>::load(y + i);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) sum = fmaf(dx.get(e), dy.get(e), sum);
      }
    } else {
      for (int i = lane; i < head_size; i += kLanes) {
        sum = fmaf(to_float(x[i]), to_float(y[i]), sum);
      }
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  if (row < n_rows && lane == 0) {
    const std::int64_t token = row / heads;
    const std::int64_t at = (token / tokens * heads + row % heads) * tokens + token % tokens;
    rows[at] = make_float2(lse[at] * kLog2e, sum);
  }
}

template <class Kernel>
void allow_shared_memory(Kernel* kernel, std::size_t bytes, std::string_view op) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        op);
}

template <class P>
void launch_flash_forward(Stream::Impl& stream, const FlashForward& args) {
  using T = typename P::Element;
  constexpr const char* kOp = "attention_forward";
  const AttentionHeads& h = args.heads;
  FlashForwardKernelArgs<T> a{};
  a.out = static_cast<T*>(args.out);
  a.lse = args.lse;
  a.q = static_cast<const T*>(args.q);
  a.k = static_cast<const T*>(args.k);
  a.v = static_cast<const T*>(args.v);
  a.q_token = args.q_token;
  a.q_sequence = args.q_sequence;
  a.kv_token = args.kv_token;
  a.kv_sequence = args.kv_sequence;
  a.tokens = static_cast<int>(h.T);
  a.position = static_cast<int>(args.position);
  a.heads = static_cast<int>(h.NH);
  a.group = static_cast<int>(h.group());
  a.head_size = static_cast<int>(h.HS);
  a.aligned = aligned_rows<T>(h.HS, a.out, a.q, a.k, a.v);
  a.negative = args.scale < 0;
  // With a scale of 0 too, masked scores of -inf must stay so.
  a.scale_log2 = std::max(std::abs(args.scale) * kLog2e, 1e-30f);
  with_padded_head(h.HS, [&](auto padded) {
    using Shape = FlashForwardShape<P, padded()>;
    const auto kernel = flash_forward_kernel<P, padded()>;
    allow_shared_memory(kernel, Shape::kBytes, kOp);
    const std::int64_t blocks = h.B * h.NH * ceil_div(h.T, Shape::kQueries);
    kernel<<<static_cast<unsigned>(blocks), kFlashThreads, Shape::kBytes, stream.stream>>>(a);
  });
  check_launch(kOp);
}

template <class P>
void launch_flash_backward(Stream::Impl& stream, const FlashBackward& args) {
  using T = typename P::Element;
  constexpr const char* kOp = "attention_backward";
  const AttentionHeads& h = args.heads;
  const FlashScratch scratch(h.B * h.NH, h.T, h.HS);
  char* const base = static_cast<char*>(args.scratch);
  const T* const out = static_cast<const T*>(args.out);
  auto* const rows = reinterpret_cast<float2*>(base + scratch.rows);
  auto* const turns = reinterpret_cast<int*>(base + scratch.turns);
  FlashBackwardKernelArgs<T> a{};
  a.dqkv = static_cast<T*>(args.dqkv);
  a.dout = static_cast<const T*>(args.dout);
  a.qkv = static_cast<const T*>(args.qkv);
  a.rows = rows;
  a.dq_sums = reinterpret_cast<float*>(base + scratch.dq_sums);
  a.next_unit = turns;
  a.turns = turns + 1;
  a.tokens = static_cast<int>(h.T);
  a.heads = static_cast<int>(h.NH);
  a.kv_heads = static_cast<int>(h.NKV);
  a.head_size = static_cast<int>(h.HS);
  a.aligned = aligned_rows<T>(h.HS, a.dqkv, a.dout, a.qkv, out);
  a.scale = args.scale;
  with_padded_head(h.HS, [&](auto padded) {
    using Shape = FlashBackwardShape<P, padded()>;
    static_assert(Shape::kQueries >= FlashScratch::kLeastQueries);
    constexpr int kThreads = 256;
    const std::int64_t n_rows = h.B * h.T * h.NH;
    const std::int64_t n_turns = h.B * h.NH * ceil_div(h.T, Shape::kQueries) + 1;
    const std::int64_t threads = std::max(n_rows * 8, n_turns);
    flash_prepare_kernel<T>
        <<<static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads, 0, stream.stream>>>(
            rows, turns, n_turns, a.dout, out, args.lse, n_rows, a.tokens, a.heads, a.head_size,
            a.aligned);
    const auto kernel = flash_backward_kernel<P, padded()>;
    allow_shared_memory(kernel, Shape::kBytes, kOp);
    const std::int64_t blocks = h.B * h.NKV * ceil_div(h.T, Shape::kKeys);
    kernel<<<static_cast<unsigned>(blocks), kFlashThreads, Shape::kBytes, stream.stream>>>(a);
  });
  check_launch(kOp);
}

}  // namespace llmc::cuda
