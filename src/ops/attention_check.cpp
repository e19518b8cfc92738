#include "ops/attention_check.h"

#include "llmc/core/error.h"
#include "llmc/ops/attention.h"
#include "ops/check.h"

namespace llmc {
namespace {

AttentionHeads heads_of(std::string_view op, const Tensor& qkv, std::int64_t NKV) {
  expect_float(op, "qkv", qkv);
  if (qkv.shape().rank() != 4) {
    fail(ErrorKind::kInput, op, "qkv: expected (B, T, NH + 2 NKV, HS), got ", qkv.shape());
  }
  const AttentionHeads h{qkv.dim(0), qkv.dim(1), qkv.dim(2) - 2 * NKV, NKV, qkv.dim(3)};
  if (NKV < 1 || h.NH < 1 || h.NH % NKV != 0) {
    fail(ErrorKind::kInput, op, "heads: expected NH to be a multiple of NKV, got NH ", h.NH,
         " and NKV ", NKV);
  }
  if (h.HS < 1 || h.HS > attention_max_head_size()) {
    fail(ErrorKind::kInput, op, "head size: expected 1 to ", attention_max_head_size(), ", got ",
         h.HS);
  }
  return h;
}

AttentionHeads expect_caches(std::string_view op, const Tensor& out, const Tensor& k_cache,
                             const Tensor& v_cache, const Tensor& qkv) {
  if (k_cache.shape().rank() != 4) {
    fail(ErrorKind::kInput, op, "k_cache: expected (B, maxT, NKV, HS), got ", k_cache.shape());
  }
  const AttentionHeads h = heads_of(op, qkv, k_cache.dim(2));
  const std::int64_t max_tokens = k_cache.dim(1);
  expect(op, "k_cache", k_cache, qkv.dtype(), {h.B, max_tokens, h.NKV, h.HS});
  expect(op, "v_cache", v_cache, qkv.dtype(), {h.B, max_tokens, h.NKV, h.HS});
  expect(op, "out", out, qkv.dtype(), {h.B, h.T, h.NH, h.HS});
  return h;
}

}  // namespace

AttentionHeads expect_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                        std::int64_t n_kv_head) {
  constexpr const char* kOp = "attention_forward";
  const AttentionHeads h = heads_of(kOp, qkv, n_kv_head);
  expect(kOp, "out", out, qkv.dtype(), {h.B, h.T, h.NH, h.HS});
  if (lse) expect(kOp, "lse", lse, DType::kF32, {h.B, h.NH, h.T});
  return h;
}

AttentionHeads expect_attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& qkv,
                                         const Tensor& out, const Tensor& lse,
                                         std::int64_t n_kv_head) {
  constexpr const char* kOp = "attention_backward";
  const AttentionHeads h = heads_of(kOp, qkv, n_kv_head);
  expect(kOp, "dqkv", dqkv, qkv.dtype(), qkv.shape());
  expect(kOp, "dout", dout, qkv.dtype(), {h.B, h.T, h.NH, h.HS});
  expect(kOp, "out", out, qkv.dtype(), {h.B, h.T, h.NH, h.HS});
  expect(kOp, "lse", lse, DType::kF32, {h.B, h.NH, h.T});
  return h;
}

AttentionHeads expect_attention_decode(const Tensor& out, const Tensor& k_cache,
                                       const Tensor& v_cache, const Tensor& qkv,
                                       std::int64_t position) {
  constexpr const char* kOp = "attention_decode";
  const AttentionHeads h = expect_caches(kOp, out, k_cache, v_cache, qkv);
  const std::int64_t max_tokens = k_cache.dim(1);
  if (position < 0 || position + h.T > max_tokens) {
    fail(ErrorKind::kInput, kOp, "position: expected at most ", max_tokens,
         " tokens in the cache, got ", position, " + ", h.T);
  }
  return h;
}

AttentionHeads expect_attention_decode_token(const Tensor& out, const Tensor& k_cache,
                                             const Tensor& v_cache, const Tensor& qkv,
                                             const Tensor& positions) {
  constexpr const char* kOp = "attention_decode_token";
  const AttentionHeads h = expect_caches(kOp, out, k_cache, v_cache, qkv);
  if (h.T != 1) fail(ErrorKind::kInput, kOp, "qkv: expected one token a row, got ", h.T);
  expect(kOp, "positions", positions, DType::kI32, {h.B});
  return h;
}

}  // namespace llmc
