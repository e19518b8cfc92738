#include "llmc/nn/block.h"

#include <cmath>

namespace llmc {
namespace {

constexpr float kInitStddev = 0.02f;

// The projections back into the residual stream start smaller, by the number of additions to it
// (Radford et al., 2019, section 2.3).
float residual_stddev(const ModelConfig& config) {
  return static_cast<float>(0.02 / std::sqrt(2.0 * static_cast<double>(config.n_layer)));
}

}  // namespace

Block::Block(LayerPlan& plan, const std::string& name, const ModelConfig& config)
    : recompute_(plan.recompute),
      channels_(config.n_embd),
      ln1_(plan, name + ".ln1", config.n_embd, config.norm_eps),
      attn_(plan, name + ".attn", {config.n_embd, config.n_head, config.n_kv_head, config.head_dim},
            config.bias, kInitStddev, residual_stddev(config)),
      ln2_(plan, name + ".ln2", config.n_embd, config.norm_eps),
      mlp_(plan, name + ".mlp", config.n_embd, config.ffn_size, config.bias, kInitStddev,
           residual_stddev(config)) {
  ActivationSet& set = plan.activations;
  const Shape shape{plan.rows(), channels_};
  const bool keep_norms = plan.keeps(Recompute::kGeluNorm);
  x1_ = set.keep_or_share(plan.training, "residual1", name, plan.dtype(), shape);
  x2_ = set.keep_or_share(plan.keeps(Recompute::kBlock), "residual2", name, plan.dtype(), shape);
  norm1_ = set.keep_or_share(keep_norms, "norm1", name, plan.dtype(), shape);
  norm2_ = set.keep_or_share(keep_norms, "norm2", name, plan.dtype(), shape);
  branch_ = set.share("branch", plan.dtype(), shape);
  if (plan.training) dnorm_ = set.share("dnorm", plan.dtype(), shape);
}

Tensor Block::like(const LayerContext& context, ActivationSet::Id id, const Tensor& x) const {
  return context.activations.get(id, x.shape());
}

Tensor Block::input(const LayerContext& context, std::int64_t batch, std::int64_t tokens) const {
  return context.activations.get(x1_, {batch, tokens, channels_});
}

/// Stores the block's input and its norm, and returns the former.
Tensor Block::begin(const LayerContext& context, const Residual& in) const {
  const Tensor x1 = like(context, x1_, in.x);
  const Tensor norm1 = like(context, norm1_, in.x);
  if (in.pending) {
    ln1_.forward_residual(context, x1, norm1, in.x, in.pending);
  } else {
    if (in.x.raw() != x1.raw()) copy(context.stream, x1, in.x);
    ln1_.forward(context, norm1, x1);
  }
  return x1;
}

/// The second half, from x1 and the attention's output in branch_.
Residual Block::finish(const LayerContext& context, const Tensor& x1) const {
  const Tensor x2 = like(context, x2_, x1);
  const Tensor norm2 = like(context, norm2_, x1);
  const Tensor branch = like(context, branch_, x1);
  ln2_.forward_residual(context, x2, norm2, x1, branch);
  mlp_.forward(context, branch, norm2);
  return {x2, branch};
}

Residual Block::forward(const LayerContext& context, const Residual& in) const {
  const Tensor x1 = begin(context, in);
  attn_.forward(context, like(context, branch_, x1), like(context, norm1_, x1));
  return finish(context, x1);
}

Residual Block::decode(const LayerContext& context, const Residual& in,
                       const KvCacheLayer& cache) const {
  const Tensor x1 = begin(context, in);
  attn_.decode(context, like(context, branch_, x1), like(context, norm1_, x1), cache);
  return finish(context, x1);
}

/// Computes again, from x1, everything that backward reads.
void Block::recompute(const LayerContext& context, const Tensor& x1) const {
  const Tensor norm1 = like(context, norm1_, x1);
  const Tensor norm2 = like(context, norm2_, x1);
  const Tensor branch = like(context, branch_, x1);
  ln1_.recompute(context, norm1, x1);
  attn_.forward(context, branch, norm1);
  ln2_.forward_residual(context, like(context, x2_, x1), norm2, x1, branch);
  mlp_.recompute(context, norm2);
}

void Block::backward(const LayerContext& context, const Tensor& dresidual) const {
  const Tensor x1 = like(context, x1_, dresidual);
  const Tensor x2 = like(context, x2_, dresidual);
  const Tensor norm1 = like(context, norm1_, dresidual);
  const Tensor norm2 = like(context, norm2_, dresidual);
  const Tensor dnorm = like(context, dnorm_, dresidual);
  if (recompute_ == Recompute::kBlock) {
    recompute(context, x1);
  } else if (recompute_ == Recompute::kGeluNorm) {
    ln1_.recompute(context, norm1, x1);
    ln2_.recompute(context, norm2, x2);
  }
  mlp_.backward(context, dnorm, dresidual, norm2);
  ln2_.backward(context, dresidual, dnorm, x2, true);
  attn_.backward(context, dnorm, dresidual, norm1);
  ln1_.backward(context, dresidual, dnorm, x1, true);
}

void Block::backward_qkv(const LayerContext& context, std::int64_t batch,
                         std::int64_t tokens) const {
  attn_.backward_qkv(context, context.activations.get(norm1_, {batch, tokens, channels_}));
}

}  // namespace llmc
