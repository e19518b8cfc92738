#include "llmc/nn/linear.h"

#include "llmc/ops/linear.h"

namespace llmc {

Linear::Linear(LayerPlan& plan, const std::string& name, std::int64_t inputs, std::int64_t outputs,
               bool bias, float stddev)
    : weight_(plan.parameters.declare(name + ".weight", {outputs, inputs},
                                      Initialiser::normal(stddev), OptimizerGroup::kDecay)),
      bias_(weight_),
      has_bias_(bias),
      inputs_(inputs),
      outputs_(outputs) {
  if (has_bias_) {
    bias_ = plan.parameters.declare(name + ".bias", {outputs}, Initialiser::zeros(),
                                    OptimizerGroup::kNoDecay);
  }
}

Tensor Linear::bias(const LayerContext& context) const {
  return has_bias_ ? context.parameters.value(bias_) : Tensor();
}

Tensor Linear::bias_gradient(const LayerContext& context) const {
  return has_bias_ ? context.parameters.gradient(bias_) : Tensor();
}

Tensor Linear::in_rows(const Tensor& tensor) const {
  return tensor ? tensor.view({tensor.numel() / inputs_, inputs_}) : tensor;
}

Tensor Linear::out_rows(const Tensor& tensor) const {
  return tensor ? tensor.view({tensor.numel() / outputs_, outputs_}) : tensor;
}

void Linear::forward(const LayerContext& context, const Tensor& out, const Tensor& in) const {
  linear_forward(context.stream, out_rows(out), in_rows(in), context.parameters.value(weight_),
                 bias(context));
}

void Linear::forward_gelu(const LayerContext& context, const Tensor& out, const Tensor& pre,
                          const Tensor& in) const {
  linear_gelu_forward(context.stream, out_rows(out), out_rows(pre), in_rows(in),
                      context.parameters.value(weight_), bias(context));
}

void Linear::backward_weight(const LayerContext& context, const Tensor& dout,
                             const Tensor& in) const {
  linear_backward_weight(context.stream, context.parameters.gradient(weight_),
                         bias_gradient(context), out_rows(dout), in_rows(in), context.accumulate);
}

void Linear::backward_weight_only(const LayerContext& context, const Tensor& dout,
                                  const Tensor& in) const {
  linear_backward_weight(context.stream, context.parameters.gradient(weight_), {}, out_rows(dout),
                         in_rows(in), context.accumulate);
}

void Linear::backward_input(const LayerContext& context, const Tensor& din,
                            const Tensor& dout) const {
  linear_backward_input(context.stream, in_rows(din), out_rows(dout),
                        context.parameters.value(weight_));
}

void Linear::backward_gelu_input(const LayerContext& context, const Tensor& dpre,
                                 const Tensor& gelu, const Linear& before, const Tensor& dout,
                                 const Tensor& pre) const {
  linear_gelu_backward_input(context.stream, in_rows(dpre), in_rows(gelu),
                             before.bias_gradient(context), out_rows(dout),
                             context.parameters.value(weight_), in_rows(pre), context.accumulate);
}

}  // namespace llmc
