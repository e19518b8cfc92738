#pragma once

#include <cstdint>
#include <string_view>

#include "llmc/core/tensor.h"

namespace llmc {

/// What a layer norm works on: rows of `channels` elements.
struct LayerNormSizes {
  std::int64_t rows;
  std::int64_t channels;
};

// What each op of llmc/ops/layernorm.h requires of its tensors, scratch apart.

LayerNormSizes check_layernorm_forward(std::string_view op, const Tensor& out, const Tensor& mean,
                                       const Tensor& rstd, const Tensor& in, const Tensor& weight,
                                       const Tensor& bias);

LayerNormSizes check_residual_layernorm_forward(std::string_view op, const Tensor& sum,
                                                const Tensor& out, const Tensor& mean,
                                                const Tensor& rstd, const Tensor& a,
                                                const Tensor& b, const Tensor& weight,
                                                const Tensor& bias);

LayerNormSizes check_layernorm_backward(std::string_view op, const Tensor& din,
                                        const Tensor& dweight, const Tensor& dbias,
                                        const Tensor& dout, const Tensor& in, const Tensor& weight,
                                        const Tensor& mean, const Tensor& rstd);

}  // namespace llmc
