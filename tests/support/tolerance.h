#pragma once

#include <cstdint>
#include <string_view>

#include "support/test_tensor.h"

namespace llmc::testing {

/// How far an fp32 computation may be from the exact one, relative to the largest value, when each
/// result sums `terms` terms: rounding errors add up like a random walk.
double f32_tolerance(std::int64_t terms);

/// Compares an op's fp32 results with the exact ones: the largest error is at most f32_tolerance of
/// the largest exact value, the root mean square error at most half of it of theirs.
void expect_close(std::string_view what, const Values& actual, const Values& exact,
                  std::int64_t terms);

/// Compares bf16 results with the exact ones: their error (largest, and root mean square) is at
/// most twice that of `plain`, the plain bf16 computation of the same.
void expect_close_bf16(std::string_view what, const Values& actual, const Values& exact,
                       const Values& plain, std::int64_t terms);

/// The one of the two above that suits the dtype.
void expect_close(std::string_view what, const TestTensor& actual, const Values& exact,
                  const Values& plain, std::int64_t terms);

}  // namespace llmc::testing
