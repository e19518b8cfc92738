#pragma once

#include <cstdint>
#include <string>

#include "llmc/nn/layer.h"

namespace llmc {

/// Layer normalisation over the last dimension; N rows of C channels. Keeps the statistics.
class LayerNorm {
 public:
  /// Declares `<name>.weight` (C), ones, and `<name>.bias` (C), zeros.
  LayerNorm(LayerPlan& plan, const std::string& name, std::int64_t channels, float eps);

  /// out, in: (..., C).
  void forward(const LayerContext& context, const Tensor& out, const Tensor& in) const;
  /// sum = a + b; out = norm(sum), in one pass. All (..., C); sum may be a or b.
  void forward_residual(const LayerContext& context, const Tensor& sum, const Tensor& out,
                        const Tensor& a, const Tensor& b) const;
  /// forward again, with the same bits, leaving the statistics as they are.
  void recompute(const LayerContext& context, const Tensor& out, const Tensor& in) const;
  /// din (+)= gradient of the input; it is added to when `add_to_input`. din, dout, in: (..., C).
  void backward(const LayerContext& context, const Tensor& din, const Tensor& dout,
                const Tensor& in, bool add_to_input) const;

 private:
  Tensor as_rows(const Tensor& tensor) const;
  ParameterSet::Id weight_, bias_;
  std::int64_t channels_;
  float eps_;
  ActivationSet::Id mean_ = ActivationSet::kNone;
  ActivationSet::Id rstd_ = ActivationSet::kNone;
  ActivationSet::Id scratch_ = ActivationSet::kNone;
};

}  // namespace llmc
