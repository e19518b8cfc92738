#pragma once

#include <cstdint>
#include <string>

#include "llmc/nn/layer.h"
#include "llmc/nn/linear.h"

namespace llmc {

/// out = proj(gelu(fc(in))). Keeps the input of GELU and, unless it is recomputed, its output; with
/// Recompute::kBlock neither, and whoever owns the layer calls `recompute` before `backward`.
class Mlp {
 public:
  /// Declares `<name>.fc` (F, C) and `<name>.proj` (C, F) as linear layers.
  Mlp(LayerPlan& plan, const std::string& name, std::int64_t channels, std::int64_t ffn_size,
      bool bias, float stddev, float proj_stddev);

  /// out, in: (B, T, C).
  void forward(const LayerContext& context, const Tensor& out, const Tensor& in) const;
  /// din, dout, in: (B, T, C); din may be dout.
  void backward(const LayerContext& context, const Tensor& din, const Tensor& dout,
                const Tensor& in) const;
  /// The part of forward that writes what backward reads.
  void recompute(const LayerContext& context, const Tensor& in) const;

 private:
  Tensor wide(const LayerContext& context, ActivationSet::Id id, const Tensor& in) const;
  Linear fc_;
  Linear proj_;
  bool recompute_gelu_;
  ActivationSet::Id pre_ = ActivationSet::kNone;
  ActivationSet::Id gelu_;
  ActivationSet::Id dpre_ = ActivationSet::kNone;
};

}  // namespace llmc
