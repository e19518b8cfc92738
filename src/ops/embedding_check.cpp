#include "ops/embedding_check.h"

#include <algorithm>

#include "llmc/core/error.h"
#include "ops/check.h"

namespace llmc {

EmbeddingSizes check_embedding_forward(std::string_view op, const Tensor& out, const Tensor& tokens,
                                       const Tensor& wte, const Tensor& wpe,
                                       std::int64_t first_position) {
  expect_float(op, "wte", wte);
  const EmbeddingSizes sizes{tokens.dim(0), tokens.dim(1), wte.dim(1)};
  const auto [B, T, C] = sizes;
  expect(op, "tokens", tokens, DType::kI32, {B, T});
  expect(op, "wte", wte, wte.dtype(), {wte.dim(0), C});
  expect(op, "out", out, wte.dtype(), {B, T, C});
  if (wpe) {
    expect(op, "wpe", wpe, wte.dtype(), {wpe.dim(0), C});
    if (first_position < 0 || first_position + T > wpe.dim(0)) {
      fail(ErrorKind::kInput, op, "positions: expected at most ", wpe.dim(0), ", got ",
           first_position, " to ", first_position + T);
    }
  }
  return sizes;
}

EmbeddingSizes check_embedding_forward_at(std::string_view op, const Tensor& out,
                                          const Tensor& tokens, const Tensor& wte,
                                          const Tensor& wpe, const Tensor& positions) {
  const EmbeddingSizes sizes = check_embedding_forward(op, out, tokens, wte, wpe, 0);
  expect(op, "tokens", tokens, DType::kI32, {sizes.B, 1});
  expect(op, "positions", positions, DType::kI32, {sizes.B});
  return sizes;
}

EmbeddingSizes check_embedding_backward(std::string_view op, const Tensor& dwte, const Tensor& dwpe,
                                        const Tensor& dout, const Tensor& tokens) {
  expect_float(op, "dout", dout);
  const EmbeddingSizes sizes{dout.dim(0), dout.dim(1), dout.dim(2)};
  const auto [B, T, C] = sizes;
  expect(op, "dout", dout, dout.dtype(), {B, T, C});
  expect(op, "tokens", tokens, DType::kI32, {B, T});
  expect(op, "dwte", dwte, DType::kF32, {dwte.dim(0), C});
  if (dwpe) expect(op, "dwpe", dwpe, DType::kF32, {std::max(T, dwpe.dim(0)), C});
  return sizes;
}

}  // namespace llmc
