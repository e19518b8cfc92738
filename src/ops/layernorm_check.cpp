#include "ops/layernorm_check.h"

#include "ops/check.h"

namespace llmc {
namespace {

LayerNormSizes check_rows(std::string_view op, std::string_view name, const Tensor& rows) {
  expect_float(op, name, rows);
  const std::int64_t channels = rows.dim(-1);
  return {expect_rows(op, name, rows, channels), channels};
}

void check_vector(std::string_view op, std::string_view name, const Tensor& vector,
                  std::int64_t channels) {
  expect_float(op, name, vector);
  expect(op, name, vector, vector.dtype(), {channels});
}

/// What the forward passes share.
void check_normalisation(std::string_view op, const LayerNormSizes& sizes, const Tensor& mean,
                         const Tensor& rstd, const Tensor& weight, const Tensor& bias) {
  check_vector(op, "weight", weight, sizes.channels);
  if (bias) check_vector(op, "bias", bias, sizes.channels);
  if (mean) expect_count(op, "mean", mean, DType::kF32, sizes.rows);
  if (rstd) expect_count(op, "rstd", rstd, DType::kF32, sizes.rows);
}

}  // namespace

LayerNormSizes check_layernorm_forward(std::string_view op, const Tensor& out, const Tensor& mean,
                                       const Tensor& rstd, const Tensor& in, const Tensor& weight,
                                       const Tensor& bias) {
  const LayerNormSizes sizes = check_rows(op, "in", in);
  expect_count(op, "out", out, in.dtype(), in.numel());
  check_normalisation(op, sizes, mean, rstd, weight, bias);
  return sizes;
}

LayerNormSizes check_residual_layernorm_forward(std::string_view op, const Tensor& sum,
                                                const Tensor& out, const Tensor& mean,
                                                const Tensor& rstd, const Tensor& a,
                                                const Tensor& b, const Tensor& weight,
                                                const Tensor& bias) {
  const LayerNormSizes sizes = check_rows(op, "a", a);
  expect_count(op, "b", b, a.dtype(), a.numel());
  expect_count(op, "sum", sum, a.dtype(), a.numel());
  expect_count(op, "out", out, a.dtype(), a.numel());
  check_normalisation(op, sizes, mean, rstd, weight, bias);
  return sizes;
}

LayerNormSizes check_layernorm_backward(std::string_view op, const Tensor& din,
                                        const Tensor& dweight, const Tensor& dbias,
                                        const Tensor& dout, const Tensor& in, const Tensor& weight,
                                        const Tensor& mean, const Tensor& rstd) {
  const LayerNormSizes sizes = check_rows(op, "in", in);
  expect_count(op, "din", din, in.dtype(), in.numel());
  expect_count(op, "dout", dout, in.dtype(), in.numel());
  expect(op, "dweight", dweight, DType::kF32, {sizes.channels});
  if (dbias) expect(op, "dbias", dbias, DType::kF32, {sizes.channels});
  check_vector(op, "weight", weight, sizes.channels);
  expect_count(op, "mean", mean, DType::kF32, sizes.rows);
  expect_count(op, "rstd", rstd, DType::kF32, sizes.rows);
  return sizes;
}

}  // namespace llmc
