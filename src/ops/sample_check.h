#pragma once

#include <cstdint>

#include "llmc/core/tensor.h"
#include "llmc/ops/sample.h"

namespace llmc {

/// Checks all arguments; returns the rows.
std::int64_t check_sample_tokens(const Tensor& tokens, const Tensor& seen, const Tensor& logits,
                                 const SampleRule& rule, std::int64_t first_sample,
                                 std::int64_t draw);

}  // namespace llmc
