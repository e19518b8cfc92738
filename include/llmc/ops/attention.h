#pragma once

#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

// Causal scaled dot-product attention (Vaswani et al., 2017), computed in blocks with a running
// softmax (Dao et al., 2022): memory grows with T, never with T². qkv: (B, T, NH + 2·NKV, HS), the
// query heads, then the key heads, then the value heads; NH is a multiple of NKV and query head h
// reads key head h / (NH / NKV). f32 or bf16, accumulated in fp32.

/// Largest head size of this backend.
std::int64_t attention_max_head_size();

/// out = softmax(scale · q·kᵀ, keys up to the query's position) · v. out: (B, T, NH, HS);
/// lse: (B, NH, T) f32, log of the softmax denominators for the backward pass, or empty.
void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       std::int64_t n_kv_head, float scale);

/// Bytes of scratch that attention_backward needs for tensors of `dtype`.
std::int64_t attention_backward_scratch(Stream& stream, DType dtype, std::int64_t batch,
                                        std::int64_t tokens, std::int64_t n_head,
                                        std::int64_t n_kv_head, std::int64_t head_size);

/// dqkv: (B, T, NH + 2·NKV, HS), overwritten; dout, out: (B, T, NH, HS); lse: (B, NH, T) f32;
/// scratch: u8.
void attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout, const Tensor& qkv,
                        const Tensor& out, const Tensor& lse, const Tensor& scratch,
                        std::int64_t n_kv_head, float scale);

// Decoding appends the keys and values of qkv to the caches, behind the tokens they hold, and
// attends from the new queries to everything up to themselves. k_cache, v_cache:
// (B, maxT, NKV, HS).

/// T new tokens, at least 1, of rows that all hold `position` tokens; position + T ≤ maxT. out:
/// (B, T, NH, HS); qkv: (B, T, NH + 2·NKV, HS).
void attention_decode(Stream& stream, const Tensor& out, const Tensor& k_cache,
                      const Tensor& v_cache, const Tensor& qkv, std::int64_t position, float scale);

/// One new token of each row, behind the positions[b] that the row holds. out: (B, 1, NH, HS); qkv:
/// (B, 1, NH + 2·NKV, HS); positions: (B) i32, below maxT. For any other position the CPU backend
/// throws an input error; a GPU backend, which cannot look at it in time, makes the row NaN.
void attention_decode_token(Stream& stream, const Tensor& out, const Tensor& k_cache,
                            const Tensor& v_cache, const Tensor& qkv, const Tensor& positions,
                            float scale);

}  // namespace llmc
