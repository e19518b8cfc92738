#include "llmc/ops/linear.h"

#include "llmc/ops/activation.h"
#include "ops/cuda/matmul_kernels.h"
#include "ops/cuda/matmul_plan.h"
#include "ops/linear_check.h"

namespace llmc {
namespace {

cuda::MatmulOperand operand(const Tensor& t, bool transposed = false) {
  return {t.raw(), t.dtype(), transposed};
}

void run(Stream& stream, const cuda::Product& product) {
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::matmul_plans(stream.impl()).run(stream.impl(), product);
}

/// out = in · weightᵀ + bias
void project(Stream& stream, const LinearSizes& sizes, const Tensor& out, const Tensor& in,
             const Tensor& weight, const Tensor& bias) {
  run(stream, {.m = sizes.rows,
               .n = sizes.outputs,
               .k = sizes.inputs,
               .c = out.raw(),
               .c_type = out.dtype(),
               .a = operand(in),
               .b = operand(weight, true),
               .bias = bias.raw(),
               .bias_type = bias.dtype()});
}

/// din = dout · weight
void project_back(Stream& stream, const LinearSizes& sizes, const Tensor& din, const Tensor& dout,
                  const Tensor& weight) {
  run(stream, {.m = sizes.rows,
               .n = sizes.inputs,
               .k = sizes.outputs,
               .c = din.raw(),
               .c_type = din.dtype(),
               .a = operand(dout),
               .b = operand(weight)});
}

}  // namespace

void matmul(Stream& stream, const Tensor& c, const Tensor& a, const Tensor& b,
            const MatmulOptions& options) {
  const auto [m, n, k] = check_matmul(c, a, b, options);
  run(stream, {.m = m,
               .n = n,
               .k = k,
               .c = c.raw(),
               .c_type = c.dtype(),
               .a = operand(a, options.transpose_a),
               .b = operand(b, options.transpose_b),
               .alpha = options.alpha,
               .beta = options.beta});
}

void linear_forward(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& weight,
                    const Tensor& bias) {
  project(stream, check_linear_forward(out, in, weight, bias), out, in, weight, bias);
}

// GELU is a kernel of its own: the library's epilogue activates sums that are not rounded to the
// type of `pre`, so that gelu_forward(pre) would give other bits.
void linear_gelu_forward(Stream& stream, const Tensor& out, const Tensor& pre, const Tensor& in,
                         const Tensor& weight, const Tensor& bias) {
  const LinearSizes sizes = check_linear_gelu_forward(out, pre, in, weight, bias);
  const Tensor& sums = pre ? pre : out;
  project(stream, sizes, sums, in, weight, bias);
  if (out.numel() > 0) gelu_forward(stream, out, sums);
}

void linear_backward_input(Stream& stream, const Tensor& din, const Tensor& dout,
                           const Tensor& weight) {
  project_back(stream, check_linear_backward_input(din, dout, weight), din, dout, weight);
}

void linear_gelu_backward_input(Stream& stream, const Tensor& dpre, const Tensor& gelu,
                                const Tensor& dbias, const Tensor& dout, const Tensor& weight,
                                const Tensor& pre, bool accumulate) {
  const LinearSizes sizes = check_linear_gelu_backward_input(dpre, gelu, dbias, dout, weight, pre);
  project_back(stream, sizes, dpre, dout, weight);
  if (dbias || gelu) {
    const cuda::CurrentDevice current(stream.impl().ordinal());
    cuda::gelu_backward_sums(stream.impl(), dbias, dpre, gelu, pre, sizes.rows, sizes.inputs,
                             accumulate);
  } else if (dpre.numel() > 0) {
    gelu_backward(stream, dpre, dpre, pre);
  }
}

// The bias gradient is a kernel of its own: the library's epilogues cannot add to what is there.
void linear_backward_weight(Stream& stream, const Tensor& dweight, const Tensor& dbias,
                            const Tensor& dout, const Tensor& in, bool accumulate) {
  const auto [rows, inputs, outputs] = check_linear_backward_weight(dweight, dbias, dout, in);
  if (dbias) {
    const cuda::CurrentDevice current(stream.impl().ordinal());
    cuda::column_sums(stream.impl(), dbias, dout, rows, outputs, accumulate);
  }
  run(stream, {.m = outputs,
               .n = inputs,
               .k = rows,
               .c = dweight.raw(),
               .c_type = dweight.dtype(),
               .a = operand(dout, true),
               .b = operand(in),
               .beta = accumulate ? 1.0f : 0.0f});
}

UntimedMatmuls::UntimedMatmuls(Stream& stream) : stream_(stream) {
  const cuda::CurrentDevice current(stream.impl().ordinal());
  before_ = cuda::matmul_plans(stream.impl()).set_timing(false);
}

UntimedMatmuls::~UntimedMatmuls() {
  cuda::matmul_plans(stream_.impl()).set_timing(before_);
}

std::string matmul_choices(Stream& stream) {
  const cuda::CurrentDevice current(stream.impl().ordinal());
  return cuda::matmul_plans(stream.impl()).choices();
}

void set_matmul_choices(Stream& stream, std::string_view text) {
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::matmul_plans(stream.impl()).set_choices(text);
  ++stream.impl().settings;
}

}  // namespace llmc
