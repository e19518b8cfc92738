#pragma once

#include <cstdint>
#include <string>

#include "llmc/nn/attention.h"
#include "llmc/nn/layer.h"
#include "llmc/nn/mlp.h"
#include "llmc/nn/model_config.h"
#include "llmc/nn/norm.h"

namespace llmc {

/// The residual stream between blocks, as a sum that the next norm computes: x + pending.
struct Residual {
  Tensor x;        ///< (B, T, C)
  Tensor pending;  ///< (B, T, C), or empty for x alone
};

/// A pre-norm transformer block: x ← x + attn(ln1(x)); x ← x + mlp(ln2(x)). Additions are done by
/// the norm that follows them: a block takes its input as a pending sum and leaves its output as
/// one. Keeps the residual stream before each norm, and the norms' outputs unless recomputed.
class Block {
 public:
  /// Declares everything under `<name>.`: ln1, attn, ln2, mlp.
  Block(LayerPlan& plan, const std::string& name, const ModelConfig& config);

  /// Where the block keeps its input: whoever computes the first block's input can write it there
  /// and save a copy. (B, T, C).
  Tensor input(const LayerContext& context, std::int64_t batch, std::int64_t tokens) const;

  /// The result's pending part lies in memory that the next block overwrites.
  Residual forward(const LayerContext& context, const Residual& in) const;
  /// All gradients but those that `backward_qkv` computes afterwards. dresidual: (B, T, C),
  /// gradient of the block's output, becomes that of its input.
  void backward(const LayerContext& context, const Tensor& dresidual) const;
  /// The gradients of the attention's qkv parameters: work that the gradient of the block's input
  /// need not wait for. Comes before another block's backward, for the same B and T.
  void backward_qkv(const LayerContext& context, std::int64_t batch, std::int64_t tokens) const;
  /// forward for T new tokens after those in the cache, which are added to it.
  Residual decode(const LayerContext& context, const Residual& in, const KvCacheLayer& cache) const;

 private:
  Tensor like(const LayerContext& context, ActivationSet::Id id, const Tensor& x) const;
  Tensor begin(const LayerContext& context, const Residual& in) const;
  Residual finish(const LayerContext& context, const Tensor& x1) const;
  void recompute(const LayerContext& context, const Tensor& x1) const;
  Recompute recompute_;
  std::int64_t channels_;
  LayerNorm ln1_;
  CausalSelfAttention attn_;
  LayerNorm ln2_;
  Mlp mlp_;
  ActivationSet::Id x1_, x2_, norm1_, norm2_, branch_;
  ActivationSet::Id dnorm_ = ActivationSet::kNone;
};

}  // namespace llmc
