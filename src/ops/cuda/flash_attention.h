#pragma once

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
std::int64_t flash_attention_backward_scratch(std::int64_t batch, std::int64_t n_head,
                                              std::int64_t tokens, std::int64_t head_size);

}  // namespace llmc::cuda
