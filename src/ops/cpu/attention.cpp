#include "llmc/ops/attention.h"

#include <algorithm>

#include "core/cpu/parallel.h"
#include "llmc/core/error.h"
#include "ops/attention_check.h"
#include "ops/check.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/attention_kernels.h"

namespace llmc {
namespace {

static_assert(cpu::attention_workspace_floats(cpu::kMaxHeadSize) * sizeof(float) <=
              cpu::kThreadWorkspaceBytes);

std::int64_t sequence_floats(std::int64_t tokens, std::int64_t HS) {
  return 4 * tokens * cpu::padded_head_size(HS);
}

/// Keys or values of all sequences: head h of token t of sequence b starts at
/// data + b · sequence + t · token + h · HS.
template <class T>
struct KeyValues {
  const T* keys;
  const T* values;
  std::int64_t sequence;
  std::int64_t token;
};

/// Attention of the h.T queries of every head, which stand at position_of(b) and after. lse may be
/// null.
template <class T, class PositionOf>
void attend(Stream& stream, const AttentionHeads& h, T* out, float* lse, const T* qkv,
            const KeyValues<T>& kv, const PositionOf& position_of, float scale) {
  const auto& kernels = cpu::attention_kernels<T>(stream.impl().isa);
  const std::int64_t blocks = (h.T + cpu::kQueryBlock - 1) / cpu::kQueryBlock;
  cpu::parallel_items(stream.impl(), h.B * h.NH * blocks, [&](std::int64_t item, int thread) {
    const std::int64_t first = item % blocks * cpu::kQueryBlock;
    const std::int64_t head = item / blocks % h.NH;
    const std::int64_t b = item / blocks / h.NH;
    const std::int64_t row = b * h.T + first;
    const std::int64_t at = b * kv.sequence + head / h.group() * h.HS;
    cpu::AttentionForwardArgs<T> args{};
    args.out = out + row * h.out_stride() + head * h.HS;
    if (lse != nullptr) args.lse = lse + (b * h.NH + head) * h.T + first;
    args.q = qkv + row * h.qkv_stride() + head * h.HS;
    args.k = kv.keys + at;
    args.v = kv.values + at;
    args.out_stride = h.out_stride();
    args.q_stride = h.qkv_stride();
    args.kv_stride = kv.token;
    args.queries = std::min(cpu::kQueryBlock, h.T - first);
    args.first = position_of(b) + first;
    args.HS = h.HS;
    args.scale = scale;
    args.workspace = static_cast<float*>(stream.impl().thread_workspace(thread));
    kernels.forward(args);
  });
}

/// Appends to the caches, which hold position_of(b) tokens of row b, and attends.
template <class PositionOf>
void decode(Stream& stream, const AttentionHeads& h, const Tensor& out, const Tensor& k_cache,
            const Tensor& v_cache, const Tensor& qkv, const PositionOf& position_of, float scale) {
  const std::int64_t max_tokens = k_cache.dim(1);
  cpu::with_float_type("attention_decode", "qkv", qkv, [&]<class T>(std::type_identity<T>) {
    const std::int64_t kv_stride = h.NKV * h.HS;
    for (std::int64_t row = 0; row < h.B * h.T; ++row) {
      const std::int64_t b = row / h.T;
      const std::int64_t to = (b * max_tokens + position_of(b) + row % h.T) * kv_stride;
      const T* const from = qkv.data<T>() + row * h.qkv_stride() + h.NH * h.HS;
      std::copy_n(from, kv_stride, k_cache.data<T>() + to);
      std::copy_n(from + kv_stride, kv_stride, v_cache.data<T>() + to);
    }
    const KeyValues<T> kv{k_cache.data<T>(), v_cache.data<T>(), max_tokens * kv_stride, kv_stride};
    attend<T>(stream, h, out.data<T>(), nullptr, qkv.data<T>(), kv, position_of, scale);
  });
}

}  // namespace

std::int64_t attention_max_head_size() {
  return cpu::kMaxHeadSize;
}

void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       std::int64_t n_kv_head, float scale) {
  const AttentionHeads h = expect_attention_forward(out, lse, qkv, n_kv_head);
  cpu::with_float_type("attention_forward", "qkv", qkv, [&]<class T>(std::type_identity<T>) {
    const T* const keys = qkv.data<T>() + h.NH * h.HS;
    const KeyValues<T> kv{keys, keys + h.NKV * h.HS, h.T * h.qkv_stride(), h.qkv_stride()};
    attend(
        stream, h, out.data<T>(), lse ? lse.data<float>() : nullptr, qkv.data<T>(), kv,
        [](std::int64_t) { return std::int64_t{0}; }, scale);
  });
}

std::int64_t attention_backward_scratch(Stream& stream, DType /*dtype*/, std::int64_t /*batch*/,
                                        std::int64_t tokens, std::int64_t /*n_head*/,
                                        std::int64_t /*n_kv_head*/, std::int64_t head_size) {
  return stream.device().threads() * sequence_floats(tokens, head_size) *
         static_cast<std::int64_t>(sizeof(float));
}

void attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout, const Tensor& qkv,
                        const Tensor& out, const Tensor& lse, const Tensor& scratch,
                        std::int64_t n_kv_head, float scale) {
  constexpr const char* kOp = "attention_backward";
  const AttentionHeads h = expect_attention_backward(dqkv, dout, qkv, out, lse, n_kv_head);
  expect_scratch(kOp, scratch,
                 attention_backward_scratch(stream, qkv.dtype(), h.B, h.T, h.NH, h.NKV, h.HS));
  cpu::with_float_type(kOp, "qkv", qkv, [&]<class T>(std::type_identity<T>) {
    const auto& kernels = cpu::attention_kernels<T>(stream.impl().isa);
    cpu::parallel_items(stream.impl(), h.B * h.NKV, [&](std::int64_t item, int thread) {
      const std::int64_t kv = item % h.NKV;
      const std::int64_t b = item / h.NKV;
      const std::int64_t head = kv * h.group();
      const std::int64_t at = b * h.T * h.qkv_stride();
      const std::int64_t q = at + head * h.HS;
      const std::int64_t k = at + (h.NH + kv) * h.HS;
      const std::int64_t v = k + h.NKV * h.HS;
      const std::int64_t o = b * h.T * h.out_stride() + head * h.HS;
      cpu::AttentionBackwardArgs<T> args{};
      args.dq = dqkv.data<T>() + q;
      args.dk = dqkv.data<T>() + k;
      args.dv = dqkv.data<T>() + v;
      args.q = qkv.data<T>() + q;
      args.k = qkv.data<T>() + k;
      args.v = qkv.data<T>() + v;
      args.out = out.data<T>() + o;
      args.dout = dout.data<T>() + o;
      args.lse = lse.data<float>() + (b * h.NH + head) * h.T;
      args.qkv_stride = h.qkv_stride();
      args.out_stride = h.out_stride();
      args.tokens = h.T;
      args.group = h.group();
      args.HS = h.HS;
      args.scale = scale;
      args.sequence = static_cast<float*>(scratch.raw()) + thread * sequence_floats(h.T, h.HS);
      args.workspace = static_cast<float*>(stream.impl().thread_workspace(thread));
      kernels.backward(args);
    });
  });
}

void attention_decode(Stream& stream, const Tensor& out, const Tensor& k_cache,
                      const Tensor& v_cache, const Tensor& qkv, std::int64_t position,
                      float scale) {
  const AttentionHeads h = expect_attention_decode(out, k_cache, v_cache, qkv, position);
  decode(
      stream, h, out, k_cache, v_cache, qkv, [=](std::int64_t) { return position; }, scale);
}

void attention_decode_token(Stream& stream, const Tensor& out, const Tensor& k_cache,
                            const Tensor& v_cache, const Tensor& qkv, const Tensor& positions,
                            float scale) {
  const AttentionHeads h = expect_attention_decode_token(out, k_cache, v_cache, qkv, positions);
  const auto* const position = positions.data<std::int32_t>();
  for (std::int64_t b = 0; b < h.B; ++b) {
    if (position[b] >= 0 && position[b] < k_cache.dim(1)) continue;
    fail(ErrorKind::kInput, "attention_decode_token", "positions: expected 0 to ",
         k_cache.dim(1) - 1, ", got ", position[b]);
  }
  decode(
      stream, h, out, k_cache, v_cache, qkv,
      [=](std::int64_t b) { return std::int64_t{position[b]}; }, scale);
}

}  // namespace llmc
