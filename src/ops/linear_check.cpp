#include "ops/linear_check.h"

#include <string_view>

#include "llmc/core/error.h"
#include "ops/check.h"

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

void check_same_dtype(std::string_view name, const Tensor& t, const Tensor& like) {
  if (t.dtype() != like.dtype()) {
    fail(ErrorKind::kInput, "linear", name, ": expected ", name_of(like.dtype()), ", got ",
         name_of(t.dtype()));
  }
}

}  // namespace

MatmulSizes check_matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                         const MatmulOptions& options) {
  const Matrix stored_a = matrix_of("matmul", "a", a);
  const std::int64_t m = options.transpose_a ? stored_a.cols : stored_a.rows;
  const std::int64_t k = options.transpose_a ? stored_a.rows : stored_a.cols;
  const Matrix stored_b = matrix_of("matmul", "b", b);
  const std::int64_t n = options.transpose_b ? stored_b.rows : stored_b.cols;
  check_matrix("matmul", "b", b, options.transpose_b ? n : k, options.transpose_b ? k : n);
  check_matrix("matmul", "c", c, m, n);
  return {m, n, k};
}

LinearSizes check_linear_forward(const Tensor& out, const Tensor& in, const Tensor& weight,
                                 const Tensor& bias) {
  const auto [oc, c] = matrix_of("linear", "weight", weight);
  const std::int64_t n = matrix_of("linear", "in", in).rows;
  check_matrix("linear", "in", in, n, c);
  check_matrix("linear", "out", out, n, oc);
  if (bias) check_vector("linear", "bias", bias, oc);
  return {n, c, oc};
}

LinearSizes check_linear_gelu_forward(const Tensor& out, const Tensor& pre, const Tensor& in,
                                      const Tensor& weight, const Tensor& bias) {
  const LinearSizes sizes = check_linear_forward(out, in, weight, bias);
  if (pre) {
    check_matrix("linear", "pre", pre, sizes.rows, sizes.outputs);
    check_same_dtype("pre", pre, out);
  }
  return sizes;
}

LinearSizes check_linear_backward_input(const Tensor& din, const Tensor& dout,
                                        const Tensor& weight) {
  const auto [oc, c] = matrix_of("linear", "weight", weight);
  const std::int64_t n = matrix_of("linear", "dout", dout).rows;
  check_matrix("linear", "dout", dout, n, oc);
  check_matrix("linear", "din", din, n, c);
  return {n, c, oc};
}

LinearSizes check_linear_gelu_backward_input(const Tensor& dpre, const Tensor& gelu,
                                             const Tensor& dbias, const Tensor& dout,
                                             const Tensor& weight, const Tensor& pre) {
  const auto [oc, c] = matrix_of("linear", "weight", weight);
  const std::int64_t n = matrix_of("linear", "dout", dout).rows;
  check_matrix("linear", "dout", dout, n, oc);
  check_matrix("linear", "dpre", dpre, n, c);
  check_matrix("linear", "pre", pre, n, c);
  check_same_dtype("pre", pre, dpre);
  if (gelu) {
    check_matrix("linear", "gelu", gelu, n, c);
    check_same_dtype("gelu", gelu, dpre);
  }
  if (dbias) check_vector("linear", "dbias", dbias, c);
  return {n, c, oc};
}

LinearSizes check_linear_backward_weight(const Tensor& dweight, const Tensor& dbias,
                                         const Tensor& dout, const Tensor& in) {
  const auto [oc, c] = matrix_of("linear", "dweight", dweight);
  const std::int64_t n = matrix_of("linear", "dout", dout).rows;
  check_matrix("linear", "dout", dout, n, oc);
  check_matrix("linear", "in", in, n, c);
  if (dbias) check_vector("linear", "dbias", dbias, oc);
  return {n, c, oc};
}

}  // namespace llmc
