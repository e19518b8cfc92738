#pragma once

#include <cstdint>
#include <string>

#include "llmc/nn/layer.h"

namespace llmc {

/// out = in · weightᵀ + bias, alone or with GELU behind it. Keeps nothing.
class Linear {
 public:
  /// Declares `<name>.weight` (OC, C), drawn with `stddev`, and, where `bias`, `<name>.bias` (OC),
  /// zeros.
  Linear(LayerPlan& plan, const std::string& name, std::int64_t inputs, std::int64_t outputs,
         bool bias, float stddev);

  /// out: (..., OC); in: (..., C).
  void forward(const LayerContext& context, const Tensor& out, const Tensor& in) const;
  /// pre = in · weightᵀ + bias; out = gelu(pre). pre, out: (..., OC); pre may be empty.
  void forward_gelu(const LayerContext& context, const Tensor& out, const Tensor& pre,
                    const Tensor& in) const;

  /// Gradients of weight and bias. dout: (..., OC); in: (..., C).
  void backward_weight(const LayerContext& context, const Tensor& dout, const Tensor& in) const;
  /// The gradient of the weight alone, where another layer's backward_gelu_input took the bias's.
  void backward_weight_only(const LayerContext& context, const Tensor& dout,
                            const Tensor& in) const;
  /// din: (..., C); dout: (..., OC).
  void backward_input(const LayerContext& context, const Tensor& din, const Tensor& dout) const;
  /// The gradient of this layer's input's GELU input: dpre = (dout · weight) ⊙ gelu'(pre), and that
  /// of the bias of `before`, the layer that made pre; and this layer's input gelu(pre) once more.
  /// dpre, pre: (..., C); gelu: (..., C) or empty; dout: (..., OC).
  void backward_gelu_input(const LayerContext& context, const Tensor& dpre, const Tensor& gelu,
                           const Linear& before, const Tensor& dout, const Tensor& pre) const;

  std::int64_t inputs() const { return inputs_; }
  std::int64_t outputs() const { return outputs_; }

 private:
  Tensor bias(const LayerContext& context) const;
  Tensor bias_gradient(const LayerContext& context) const;
  Tensor in_rows(const Tensor& tensor) const;
  Tensor out_rows(const Tensor& tensor) const;
  ParameterSet::Id weight_;
  ParameterSet::Id bias_;
  bool has_bias_;
  std::int64_t inputs_, outputs_;
};

}  // namespace llmc
