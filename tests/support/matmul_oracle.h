#pragma once

// Elements of matrix products in fp64, and how far fp32 sums may be from them.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/core/dtype.h"
#include "support/test_tensor.h"

namespace llmc::testing {

/// A matrix as it is stored, and whether the product reads it transposed.
struct StoredMatrix {
  Values values;
  std::int64_t cols;  ///< as stored
  bool transposed;

  double at(std::int64_t row, std::int64_t col) const {
    const std::int64_t i = transposed ? col * cols + row : row * cols + col;
    return values[static_cast<std::size_t>(i)];
  }
};

/// A sum, and that of the absolute values of its terms, which bounds what rounding can do to it.
struct ExactSum {
  double value = 0;
  double magnitude = 0;

  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
  void scale(double factor) {
    value *= factor;
    magnitude *= std::abs(factor);
  }
};

/// Element (i, j) of a·b, summed over k.
inline ExactSum product_element(const StoredMatrix& a, const StoredMatrix& b, std::int64_t k,
                                std::int64_t i, std::int64_t j) {
  ExactSum sum;
  for (std::int64_t d = 0; d < k; ++d) sum.add(a.at(i, d) * b.at(d, j));
  return sum;
}

/// How far an fp32 sum of `terms` terms, stored as `dtype`, may be from the exact one: rounding
/// errors grow about as the square root of the number of terms; a store as bf16 adds its own.
inline double sum_tolerance(const ExactSum& exact, std::int64_t terms, DType dtype) {
  constexpr double kF32Rounding = 0x1p-24, kBF16Rounding = 0x1p-8;
  const double sum = (3.0 + std::sqrt(static_cast<double>(terms))) * kF32Rounding * exact.magnitude;
  return sum + (dtype == DType::kBF16 ? kBF16Rounding * (std::abs(exact.value) + sum) : 0.0);
}

/// What is allowed besides where something is added to a product in the same call: GPU libraries
/// round the product to bf16 first, as two plain operations would.
inline double addition_tolerance(double product, DType dtype) {
  const bool rounds = dtype == DType::kBF16 && backend_name() != "cpu";
  return rounds ? 0x1p-8 * std::abs(product) : 0.0;
}

}  // namespace llmc::testing
