#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/cuda/device_impl.h"
#include "llmc/core/dtype.h"
#include "ops/attention_check.h"

namespace llmc::cuda {

// This library's own attention kernels (Dao et al., 2022; Dao, 2023). They take every T and head
// sizes up to kFlashMaxHeadSize; arguments are checked by the callers.

inline constexpr std::int64_t kFlashMaxHeadSize = 128;

/// Queries of T tokens that follow `position` others. The element of token t, head h of sequence b
/// lies at pointer + b · sequence + t · token + h · HS.
struct FlashForward {
  DType dtype;
  AttentionHeads heads;
  void* out;   ///< (B, T, NH, HS)
  float* lse;  ///< (B, NH, T) or null
  const void* q;
  const void* k;
  const void* v;
  std::int64_t q_token;
  std::int64_t q_sequence;
  std::int64_t kv_token;
  std::int64_t kv_sequence;
  std::int64_t position;
  float scale;
};
void flash_attention_forward(Stream::Impl& stream, const FlashForward& args);

/// Tensors as in attention_backward.
struct FlashBackward {
  DType dtype;
  AttentionHeads heads;
  void* dqkv;
  const void* dout;
  const void* qkv;
  const void* out;
  const float* lse;
  void* scratch;
  float scale;
};
void flash_attention_backward(Stream::Impl& stream, const FlashBackward& args);

/// Bytes of FlashBackward::scratch.
std::int64_t flash_attention_backward_scratch(std::int64_t batch, std::int64_t tokens,
                                              std::int64_t n_head);

/// Tokens rounded up to what the backward kernels' row values are stored for.
constexpr std::int64_t flash_padded_tokens(std::int64_t tokens) {
  return (tokens + 63) / 64 * 64;
}

/// The backward pass's first kernel: (lse · log2(e), dout · out) of every query, as
/// (B, NH, padded tokens), infinite and 0 behind the last. They lie in the scratch.
const float2* flash_prepare(Stream::Impl& stream, const FlashBackward& args);

inline constexpr float kLog2e = 1.4426950408889634f;

}  // namespace llmc::cuda
