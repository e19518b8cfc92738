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
  std::int64_t position;                    ///< of all rows
  const std::int32_t* positions = nullptr;  ///< device memory: of each row, in place of that
  float scale;
};

/// Copies the keys and values of qkv to their place in the caches, for rows at one position.
void append_to_caches(Stream::Impl& stream, const AttentionDecode& args);

}  // namespace llmc::cuda
