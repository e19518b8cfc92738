#pragma once

#include <cstdint>

#include "llmc/core/tensor.h"
#include "llmc/ops/linear.h"

namespace llmc {

// What the matrix products require of their arguments, for every backend. Each check throws an
// input error "[op] name: expected …, got …" and returns the sizes.

struct MatmulSizes {
  std::int64_t m, n, k;
};

MatmulSizes check_matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                         const MatmulOptions& options);

struct LinearSizes {
  std::int64_t rows;     ///< N
  std::int64_t inputs;   ///< C
  std::int64_t outputs;  ///< OC
};

LinearSizes check_linear_forward(const Tensor& out, const Tensor& in, const Tensor& weight,
                                 const Tensor& bias);
LinearSizes check_linear_gelu_forward(const Tensor& out, const Tensor& pre, const Tensor& in,
                                      const Tensor& weight, const Tensor& bias);
LinearSizes check_linear_backward_input(const Tensor& din, const Tensor& dout,
                                        const Tensor& weight);
LinearSizes check_linear_gelu_backward_input(const Tensor& dpre, const Tensor& gelu,
                                             const Tensor& dbias, const Tensor& dout,
                                             const Tensor& weight, const Tensor& pre);
LinearSizes check_linear_backward_weight(const Tensor& dweight, const Tensor& dbias,
                                         const Tensor& dout, const Tensor& in);

}  // namespace llmc
