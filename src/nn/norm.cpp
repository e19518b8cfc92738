#include "llmc/nn/norm.h"

#include "llmc/ops/layernorm.h"

namespace llmc {

LayerNorm::LayerNorm(LayerPlan& plan, const std::string& name, std::int64_t channels, float eps)
    : weight_(plan.parameters.declare(name + ".weight", {channels}, Initialiser::ones(),
                                      OptimizerGroup::kNoDecay)),
      bias_(plan.parameters.declare(name + ".bias", {channels}, Initialiser::zeros(),
                                    OptimizerGroup::kNoDecay)),
      channels_(channels),
      eps_(eps) {
  if (!plan.training) return;
  const Shape shape{plan.rows()};
  mean_ = plan.activations.keep("norm_mean." + name, DType::kF32, shape);
  rstd_ = plan.activations.keep("norm_rstd." + name, DType::kF32, shape);
  scratch_ = plan.activations.share(
      "scratch", DType::kU8, {layernorm_backward_scratch(plan.stream, plan.rows(), channels)});
}

Tensor LayerNorm::as_rows(const Tensor& tensor) const {
  return tensor.view({tensor.numel() / channels_, channels_});
}

void LayerNorm::forward(const LayerContext& context, const Tensor& out, const Tensor& in) const {
  const Shape rows{in.numel() / channels_};
  layernorm_forward(context.stream, as_rows(out), context.activations.get(mean_, rows),
                    context.activations.get(rstd_, rows), as_rows(in),
                    context.parameters.value(weight_), context.parameters.value(bias_), eps_);
}

void LayerNorm::forward_residual(const LayerContext& context, const Tensor& sum, const Tensor& out,
                                 const Tensor& a, const Tensor& b) const {
  const Shape rows{a.numel() / channels_};
  residual_layernorm_forward(
      context.stream, as_rows(sum), as_rows(out), context.activations.get(mean_, rows),
      context.activations.get(rstd_, rows), as_rows(a), as_rows(b),
      context.parameters.value(weight_), context.parameters.value(bias_), eps_);
}

void LayerNorm::recompute(const LayerContext& context, const Tensor& out, const Tensor& in) const {
  layernorm_forward(context.stream, as_rows(out), {}, {}, as_rows(in),
                    context.parameters.value(weight_), context.parameters.value(bias_), eps_);
}

void LayerNorm::backward(const LayerContext& context, const Tensor& din, const Tensor& dout,
                         const Tensor& in, bool add_to_input) const {
  const Shape rows{in.numel() / channels_};
  layernorm_backward(context.stream, as_rows(din), context.parameters.gradient(weight_),
                     context.parameters.gradient(bias_), as_rows(dout), as_rows(in),
                     context.parameters.value(weight_), context.activations.get(mean_, rows),
                     context.activations.get(rstd_, rows), context.activations.get(scratch_),
                     add_to_input, context.accumulate);
}

}  // namespace llmc
