#include "llmc/nn/mlp.h"

namespace llmc {

Mlp::Mlp(LayerPlan& plan, const std::string& name, std::int64_t channels, std::int64_t ffn_size,
         bool bias, float stddev, float proj_stddev)
    : fc_(plan, name + ".fc", channels, ffn_size, bias, stddev),
      proj_(plan, name + ".proj", ffn_size, channels, bias, proj_stddev),
      recompute_gelu_(plan.recompute != Recompute::kNone) {
  const Shape shape{plan.rows(), ffn_size};
  gelu_ = plan.activations.keep_or_share(plan.keeps(Recompute::kGelu), "gelu", name, plan.dtype(),
                                         shape);
  if (!plan.training) return;
  pre_ = plan.activations.keep_or_share(plan.keeps(Recompute::kBlock), "fc", name, plan.dtype(),
                                        shape);
  dpre_ = plan.activations.share("dwide", plan.dtype(), shape);
}

Tensor Mlp::wide(const LayerContext& context, ActivationSet::Id id, const Tensor& in) const {
  return context.activations.get(id, {in.numel() / fc_.inputs(), fc_.outputs()});
}

void Mlp::recompute(const LayerContext& context, const Tensor& in) const {
  fc_.forward(context, wide(context, pre_, in), in);
}

void Mlp::forward(const LayerContext& context, const Tensor& out, const Tensor& in) const {
  const Tensor gelu = wide(context, gelu_, in);
  fc_.forward_gelu(context, gelu, wide(context, pre_, in), in);
  proj_.forward(context, out, gelu);
}

void Mlp::backward(const LayerContext& context, const Tensor& din, const Tensor& dout,
                   const Tensor& in) const {
  const Tensor gelu = wide(context, gelu_, in);
  const Tensor pre = wide(context, pre_, in);
  const Tensor dpre = wide(context, dpre_, in);
  proj_.backward_gelu_input(context, dpre, recompute_gelu_ ? gelu : Tensor(), fc_, dout, pre);
  fc_.backward_weight_only(context, dpre, in);
  proj_.backward_weight(context, dout, gelu);
  fc_.backward_input(context, din, dpre);  // last, as din may be dout
}

}  // namespace llmc
