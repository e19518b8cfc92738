#include "llmc/ops/linear.h"

#include <string_view>

#include "llmc/core/error.h"
#include "ops/check.h"
#include "ops/cpu/gemm.h"

namespace llmc {
namespace {

/// Rows and columns of a matrix: the last dimension against all those before it.
struct Matrix {
  std::int64_t rows, cols;
};

Matrix matrix_of(std::string_view op, std::string_view name, const Tensor& t) {
  if (t.shape().numel() > 0) expect_float(op, name, t);
  if (t.shape().rank() < 1) {
    fail(ErrorKind::kInput, op, name, ": expected at least one dimension, got a scalar");
  }
  Matrix matrix = {1, t.dim(-1)};
  for (int i = 0; i < t.shape().rank() - 1; ++i) matrix.rows *= t.dim(i);
  return matrix;
}

void check_matrix(std::string_view op, std::string_view name, const Tensor& t, std::int64_t rows,
                  std::int64_t cols) {
  const Matrix got = matrix_of(op, name, t);
  if (got.rows != rows || got.cols != cols) {
    fail(ErrorKind::kInput, op, name, ": expected (", rows, ", ", cols, "), got ", t.shape());
  }
}

void check_vector(std::string_view op, std::string_view name, const Tensor& t, std::int64_t size) {
  expect_float(op, name, t);
  if (t.shape().numel() != size) {
    fail(ErrorKind::kInput, op, name, ": expected (", size, "), got ", t.shape());
  }
}

cpu::GemmOutput output(const Tensor& c) {
  return {.c = c.raw(), .c_type = c.dtype(), .ld = c.dim(-1)};
}
cpu::GemmOperand operand(const Tensor& t, bool depth_contiguous) {
  return {t.raw(), t.dtype(), t.dim(-1), depth_contiguous};
}

void set_bias(cpu::GemmOutput& out, const Tensor& bias) {
  if (bias.empty()) return;
  out.bias = bias.raw();
  out.bias_type = bias.dtype();
}

}  // namespace

void matmul(Stream& stream, const Tensor& c, const Tensor& a, const Tensor& b,
            const MatmulOptions& options) {
  const Matrix stored_a = matrix_of("matmul", "a", a);
  const std::int64_t m = options.transpose_a ? stored_a.cols : stored_a.rows;
  const std::int64_t k = options.transpose_a ? stored_a.rows : stored_a.cols;
  const Matrix stored_b = matrix_of("matmul", "b", b);
  const std::int64_t n = options.transpose_b ? stored_b.rows : stored_b.cols;
  check_matrix("matmul", "b", b, options.transpose_b ? n : k, options.transpose_b ? k : n);
  check_matrix("matmul", "c", c, m, n);
  cpu::GemmOutput out = output(c);
  out.alpha = options.alpha;
  out.beta = options.beta;
  cpu::gemm(stream.impl(), out, operand(a, !options.transpose_a), operand(b, options.transpose_b),
            m, n, k);
}

void linear_forward(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& weight,
                    const Tensor& bias) {
  const auto [oc, c] = matrix_of("linear", "weight", weight);
  const std::int64_t n = matrix_of("linear", "in", in).rows;
  check_matrix("linear", "in", in, n, c);
  check_matrix("linear", "out", out, n, oc);
  if (bias) check_vector("linear", "bias", bias, oc);
  cpu::GemmOutput result = output(out);
  set_bias(result, bias);
  cpu::gemm(stream.impl(), result, operand(in, true), operand(weight, true), n, oc, c);
}

void linear_gelu_forward(Stream& stream, const Tensor& out, const Tensor& pre, const Tensor& in,
                         const Tensor& weight, const Tensor& bias) {
  const auto [oc, c] = matrix_of("linear", "weight", weight);
  const std::int64_t n = matrix_of("linear", "in", in).rows;
  check_matrix("linear", "in", in, n, c);
  check_matrix("linear", "out", out, n, oc);
  if (pre) check_matrix("linear", "pre", pre, n, oc);
  if (bias) check_vector("linear", "bias", bias, oc);
  cpu::GemmOutput result = output(out);
  set_bias(result, bias);
  result.epilogue = cpu::GemmEpilogue::kGelu;
  result.pre = pre.raw();
  result.pre_type = pre ? pre.dtype() : out.dtype();
  cpu::gemm(stream.impl(), result, operand(in, true), operand(weight, true), n, oc, c);
}

void linear_backward_input(Stream& stream, const Tensor& din, const Tensor& dout,
                           const Tensor& weight) {
  const auto [oc, c] = matrix_of("linear", "weight", weight);
  const std::int64_t n = matrix_of("linear", "dout", dout).rows;
  check_matrix("linear", "dout", dout, n, oc);
  check_matrix("linear", "din", din, n, c);
  cpu::gemm(stream.impl(), output(din), operand(dout, true), operand(weight, false), n, c, oc);
}

void linear_gelu_backward_input(Stream& stream, const Tensor& dpre, const Tensor& dout,
                                const Tensor& weight, const Tensor& pre) {
  const auto [oc, c] = matrix_of("linear", "weight", weight);
  const std::int64_t n = matrix_of("linear", "dout", dout).rows;
  check_matrix("linear", "dout", dout, n, oc);
  check_matrix("linear", "dpre", dpre, n, c);
  check_matrix("linear", "pre", pre, n, c);
  cpu::GemmOutput result = output(dpre);
  result.epilogue = cpu::GemmEpilogue::kGeluGradient;
  result.pre = pre.raw();
  result.pre_type = pre.dtype();
  cpu::gemm(stream.impl(), result, operand(dout, true), operand(weight, false), n, c, oc);
}

void linear_backward_weight(Stream& stream, const Tensor& dweight, const Tensor& dbias,
                            const Tensor& dout, const Tensor& in, bool accumulate) {
  const Matrix matrix = matrix_of("linear", "dweight", dweight);
  const std::int64_t oc = matrix.rows, c = matrix.cols;
  const std::int64_t n = matrix_of("linear", "dout", dout).rows;
  check_matrix("linear", "dout", dout, n, oc);
  check_matrix("linear", "in", in, n, c);
  if (dbias) check_vector("linear", "dbias", dbias, oc);
  cpu::GemmOutput result = output(dweight);
  result.beta = accumulate ? 1.0f : 0.0f;
  result.row_sums = dbias.raw();
  result.row_sums_type = dbias.dtype();
  result.accumulate_row_sums = accumulate;
  cpu::gemm(stream.impl(), result, operand(dout, false), operand(in, false), oc, c, n);
}

}  // namespace llmc
