#pragma once

#include <cstdint>
#include <string_view>

#include "llmc/core/tensor.h"

namespace llmc {

/// Sizes of qkv, (B, T, NH + 2·NKV, HS).
struct AttentionHeads {
  std::int64_t B;
  std::int64_t T;
  std::int64_t NH;
  std::int64_t NKV;
  std::int64_t HS;

  std::int64_t group() const { return NH / NKV; }
  /// Elements from a token to the next.
  std::int64_t qkv_stride() const { return (NH + 2 * NKV) * HS; }
  std::int64_t out_stride() const { return NH * HS; }
};

// What the attention ops require of their arguments, for every backend. Each throws an input error
// or returns the sizes.

AttentionHeads expect_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                        std::int64_t n_kv_head);
AttentionHeads expect_attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& qkv,
                                         const Tensor& out, const Tensor& lse,
                                         std::int64_t n_kv_head);
AttentionHeads expect_attention_decode(const Tensor& out, const Tensor& k_cache,
                                       const Tensor& v_cache, const Tensor& qkv,
                                       std::int64_t position);
AttentionHeads expect_attention_decode_token(const Tensor& out, const Tensor& k_cache,
                                             const Tensor& v_cache, const Tensor& qkv,
                                             const Tensor& positions);

}  // namespace llmc
