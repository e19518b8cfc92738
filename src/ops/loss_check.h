#pragma once

#include <cstdint>
#include <string_view>

#include "llmc/core/tensor.h"

namespace llmc {

/// Columns of the largest vocabulary that the loss takes.
inline constexpr std::int64_t kMaxVocabulary = 1000000;

/// The sizes of a cross-entropy.
struct LossSizes {
  std::int64_t rows;
  std::int64_t padded_vocab_size;
};
/// Checks all arguments but the elements of `targets`.
LossSizes check_cross_entropy(std::string_view op, const Tensor& losses, const Tensor& logits,
                              const Tensor& targets, std::int64_t vocab_size);

}  // namespace llmc
