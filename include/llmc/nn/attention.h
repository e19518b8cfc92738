#pragma once

#include <cstdint>
#include <string>

#include "llmc/nn/layer.h"
#include "llmc/nn/linear.h"

namespace llmc {

/// Sizes of a CausalSelfAttention.
struct AttentionSizes {
  std::int64_t channels;   ///< C
  std::int64_t n_head;     ///< NH
  std::int64_t n_kv_head;  ///< NKV, a divisor of NH
  std::int64_t head_dim;   ///< HS
};

/// One layer's part of a KV cache, or some of its rows.
struct KvCacheLayer {
  Tensor k, v;                ///< (B, maxT, NKV, HS)
  std::int64_t position = 0;  ///< tokens that all rows hold
  Tensor positions = {};      ///< (B) i32, device memory: tokens that each row holds, if not empty
};

/// Projections and causal attention between them: out = proj(attention(qkv(in))). Keeps qkv, the
/// attention's output and its softmax denominators; with Recompute::kBlock none of them, and
/// whoever owns the layer calls `recompute` before `backward`.
class CausalSelfAttention {
 public:
  /// Declares `<name>.qkv` ((NH + 2·NKV)·HS, C) and `<name>.proj` (C, NH·HS) as linear layers.
  CausalSelfAttention(LayerPlan& plan, const std::string& name, const AttentionSizes& sizes,
                      bool bias, float stddev, float proj_stddev);

  /// out, in: (B, T, C).
  void forward(const LayerContext& context, const Tensor& out, const Tensor& in) const;
  /// All gradients but those of qkv's parameters. din, dout, in: (B, T, C); din may be dout.
  void backward(const LayerContext& context, const Tensor& din, const Tensor& dout,
                const Tensor& in) const;
  /// The gradients of qkv's parameters, from what `backward` has left in shared memory: comes
  /// before the backward of any other attention or Mlp. in: (B, T, C), as in `backward`.
  void backward_qkv(const LayerContext& context, const Tensor& in) const;
  /// forward without the projection: writes what backward reads.
  void recompute(const LayerContext& context, const Tensor& in) const;
  /// forward for T new tokens after those in the cache, which are added to it; one of each row
  /// where the cache has positions of each. out, in: (B, T, C).
  void decode(const LayerContext& context, const Tensor& out, const Tensor& in,
              const KvCacheLayer& cache) const;

 private:
  Tensor qkv(const LayerContext& context, const Tensor& in) const;
  Tensor heads(const LayerContext& context, const Tensor& in) const;
  Tensor lse(const LayerContext& context, const Tensor& in) const;
  AttentionSizes sizes_;
  Linear qkv_;
  Linear proj_;
  float scale_;
  ActivationSet::Id qkv_out_, heads_, lse_ = ActivationSet::kNone;
  ActivationSet::Id dqkv_ = ActivationSet::kNone;
  ActivationSet::Id dheads_ = ActivationSet::kNone;
  ActivationSet::Id scratch_ = ActivationSet::kNone;
};

}  // namespace llmc
