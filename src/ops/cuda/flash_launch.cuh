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

/// rows: what flash_prepare wrote.
template <class P>
void launch_flash_backward(Stream::Impl& stream, const FlashBackward& args, const float2* rows) {
  using T = typename P::Element;
  constexpr const char* kOp = "attention_backward";
  const AttentionHeads& h = args.heads;
  FlashBackwardKernelArgs<T> a{};
  a.dqkv = static_cast<T*>(args.dqkv);
  a.dout = static_cast<const T*>(args.dout);
  a.qkv = static_cast<const T*>(args.qkv);
  a.rows = rows;
  a.tokens = static_cast<int>(h.T);
  a.padded_tokens = static_cast<int>(flash_padded_tokens(h.T));
  a.heads = static_cast<int>(h.NH);
  a.kv_heads = static_cast<int>(h.NKV);
  a.head_size = static_cast<int>(h.HS);
  a.aligned = aligned_rows<T>(h.HS, a.dqkv, a.dout, a.qkv);
  a.scale = args.scale;
  with_padded_head(h.HS, [&](auto padded) {
    using Shape = FlashBackwardShape<P, padded()>;
    const auto dkdv = flash_dkdv_kernel<P, padded()>;
    const auto dq = flash_dq_kernel<P, padded()>;
    allow_shared_memory(dkdv, Shape::kBytes, kOp);
    allow_shared_memory(dq, Shape::kBytes, kOp);
    const std::int64_t tiles = h.B * (a.padded_tokens / kFlashRows);
    dkdv<<<static_cast<unsigned>(tiles * h.NKV), kFlashThreads, Shape::kBytes, stream.stream>>>(a);
    dq<<<static_cast<unsigned>(tiles * h.NH), kFlashThreads, Shape::kBytes, stream.stream>>>(a);
  });
  check_launch(kOp);
}

}  // namespace llmc::cuda
