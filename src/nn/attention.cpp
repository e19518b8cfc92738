#include "llmc/nn/attention.h"

#include <cmath>

#include "llmc/core/error.h"
#include "llmc/ops/attention.h"

namespace llmc {
namespace {

std::int64_t qkv_width(const AttentionSizes& sizes) {
  return (sizes.n_head + 2 * sizes.n_kv_head) * sizes.head_dim;
}

AttentionSizes checked(const AttentionSizes& sizes, const std::string& name) {
  if (sizes.n_kv_head < 1 || sizes.n_head % sizes.n_kv_head != 0) {
    fail(ErrorKind::kConfig, "attention", name,
         ": expected n_kv_head to divide n_head = ", sizes.n_head, ", got ", sizes.n_kv_head);
  }
  if (sizes.head_dim > attention_max_head_size()) {
    fail(ErrorKind::kConfig, "attention", name, ": expected head_dim of at most ",
         attention_max_head_size(), ", got ", sizes.head_dim);
  }
  return sizes;
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(LayerPlan& plan, const std::string& name,
                                         const AttentionSizes& sizes, bool bias, float stddev,
                                         float proj_stddev)
    : sizes_(checked(sizes, name)),
      qkv_(plan, name + ".qkv", sizes.channels, qkv_width(sizes), bias, stddev),
      proj_(plan, name + ".proj", sizes.n_head * sizes.head_dim, sizes.channels, bias, proj_stddev),
      scale_(1.0f / std::sqrt(static_cast<float>(sizes.head_dim))) {
  const bool keep = plan.keeps(Recompute::kBlock);
  const Shape qkv_shape{plan.rows(), qkv_width(sizes)};
  const Shape heads_shape{plan.rows(), sizes.n_head * sizes.head_dim};
  qkv_out_ = plan.activations.keep_or_share(keep, "qkv", name, plan.dtype(), qkv_shape);
  heads_ = plan.activations.keep_or_share(keep, "attention", name, plan.dtype(), heads_shape);
  if (!plan.training) return;
  lse_ = plan.activations.keep_or_share(keep, "attention_lse", name, DType::kF32,
                                        {plan.batch, sizes.n_head, plan.tokens});
  dqkv_ = plan.activations.share("dwide", plan.dtype(), qkv_shape);
  dheads_ = plan.activations.share("dheads", plan.dtype(), heads_shape);
  scratch_ = plan.activations.share(
      "scratch", DType::kU8,
      {attention_backward_scratch(plan.stream, plan.dtype(), plan.batch, plan.tokens, sizes.n_head,
                                  sizes.n_kv_head, sizes.head_dim)});
}

Tensor CausalSelfAttention::qkv(const LayerContext& context, const Tensor& in) const {
  return context.activations.get(
      qkv_out_, {in.dim(0), in.dim(1), sizes_.n_head + 2 * sizes_.n_kv_head, sizes_.head_dim});
}

Tensor CausalSelfAttention::heads(const LayerContext& context, const Tensor& in) const {
  return context.activations.get(heads_, {in.dim(0), in.dim(1), sizes_.n_head, sizes_.head_dim});
}

Tensor CausalSelfAttention::lse(const LayerContext& context, const Tensor& in) const {
  return context.activations.get(lse_, {in.dim(0), sizes_.n_head, in.dim(1)});
}

void CausalSelfAttention::recompute(const LayerContext& context, const Tensor& in) const {
  qkv_.forward(context, qkv(context, in), in);
  attention_forward(context.stream, heads(context, in), lse(context, in), qkv(context, in),
                    sizes_.n_kv_head, scale_);
}

void CausalSelfAttention::forward(const LayerContext& context, const Tensor& out,
                                  const Tensor& in) const {
  recompute(context, in);
  proj_.forward(context, out, heads(context, in));
}

void CausalSelfAttention::backward(const LayerContext& context, const Tensor& din,
                                   const Tensor& dout, const Tensor& in) const {
  const Tensor dheads = context.activations.get(dheads_, heads(context, in).shape());
  const Tensor dqkv = context.activations.get(dqkv_, qkv(context, in).shape());
  proj_.backward_weight(context, dout, heads(context, in));
  proj_.backward_input(context, dheads, dout);
  attention_backward(context.stream, dqkv, dheads, qkv(context, in), heads(context, in),
                     lse(context, in), context.activations.get(scratch_), sizes_.n_kv_head, scale_);
  qkv_.backward_input(context, din, dqkv);
}

void CausalSelfAttention::backward_qkv(const LayerContext& context, const Tensor& in) const {
  const Tensor dqkv = context.activations.get(dqkv_, qkv(context, in).shape());
  qkv_.backward_weight(context, dqkv, in);
}

void CausalSelfAttention::decode(const LayerContext& context, const Tensor& out, const Tensor& in,
                                 const KvCacheLayer& cache) const {
  const Tensor qkv_out = qkv(context, in);
  qkv_.forward(context, qkv_out, in);
  if (cache.positions) {
    attention_decode_token(context.stream, heads(context, in), cache.k, cache.v, qkv_out,
                           cache.positions, scale_);
  } else {
    attention_decode(context.stream, heads(context, in), cache.k, cache.v, qkv_out, cache.position,
                     scale_);
  }
  proj_.forward(context, out, heads(context, in));
}

}  // namespace llmc
