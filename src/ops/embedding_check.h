#pragma once

#include <cstdint>
#include <string_view>

#include "llmc/core/tensor.h"

namespace llmc {

/// Tokens are (B, T), their vectors (B, T, C).
struct EmbeddingSizes {
  std::int64_t B, T, C;
};
// Each checks all arguments but the elements of `tokens`.
EmbeddingSizes check_embedding_forward(std::string_view op, const Tensor& out, const Tensor& tokens,
                                       const Tensor& wte, const Tensor& wpe,
                                       std::int64_t first_position);
EmbeddingSizes check_embedding_forward_at(std::string_view op, const Tensor& out,
                                          const Tensor& tokens, const Tensor& wte,
                                          const Tensor& wpe, const Tensor& positions);
EmbeddingSizes check_embedding_backward(std::string_view op, const Tensor& dwte, const Tensor& dwpe,
                                        const Tensor& dout, const Tensor& tokens);

}  // namespace llmc
