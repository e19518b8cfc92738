#pragma once

#include <cstdint>

#include "core/cuda/device_impl.h"
#include "llmc/core/dtype.h"
#include "ops/attention_check.h"

namespace llmc::cuda {

/// Tensors as in the public attention_decode, whose caches hold max_tokens.
struct AttentionDecode {
  DType dtype;
  AttentionHeads heads;
  void* out;
  void* k_cache;
  void* v_cache;
  const void* qkv;
  std::int64_t max_tokens;
  std::int64_t position;
  float scale;
};

/// Copies the keys and values of qkv to their place in the caches.
void append_to_caches(Stream::Impl& stream, const AttentionDecode& args);

/// One new token, T = 1: does all that attention_decode does.
void attention_decode_token(Stream::Impl& stream, const AttentionDecode& args);

}  // namespace llmc::cuda
