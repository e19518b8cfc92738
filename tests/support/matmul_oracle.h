#pragma once

// Matrices with known content, and their products in fp64, to compare the fast ones with.

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc::testing {

/// A tensor that owns its memory.
class OwnedTensor {
 public:
  OwnedTensor(const Device& device, DType dtype, Shape shape)
      : buffer_(device, static_cast<std::size_t>(shape.numel()) * size_of(dtype)),
        tensor_(buffer_.data(), dtype, shape) {}

  operator const Tensor&() const { return tensor_; }  // NOLINT: stands for its tensor
  const Tensor* operator->() const { return &tensor_; }

  double at(std::int64_t i) const {
    return tensor_.dtype() == DType::kF32 ? tensor_.data<float>()[i]
                                          : to_f32(tensor_.data<bf16>()[i]);
  }
  void set(std::int64_t i, float value) {
    if (tensor_.dtype() == DType::kF32) {
      tensor_.data<float>()[i] = value;
    } else {
      tensor_.data<bf16>()[i] = to_bf16(value);
    }
  }
  void fill(float value) {
    for (std::int64_t i = 0; i < tensor_.numel(); ++i) set(i, value);
  }
  /// Uniform values in [-1, 1).
  void fill_random(std::uint32_t seed) {
    std::minstd_rand generator(seed);
    for (std::int64_t i = 0; i < tensor_.numel(); ++i) {
      set(i, static_cast<float>(generator()) * 0x1p-30f - 1.0f);
    }
  }
  std::vector<double> values() const {
    std::vector<double> result(static_cast<std::size_t>(tensor_.numel()));
    for (std::int64_t i = 0; i < tensor_.numel(); ++i) {
      result[static_cast<std::size_t>(i)] = at(i);
    }
    return result;
  }

 private:
  Buffer buffer_;
  Tensor tensor_;
};

/// One element of a product and the sum of the absolute values of its terms, which bounds what
/// rounding can do to it.
struct ExactSum {
  double value = 0;
  double magnitude = 0;

  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

/// Element (i, j) of op(a) · op(b), summed over k. a is stored (M, K), or (K, M) if transposed; b
/// is stored (K, N), or (N, K) if transposed.
inline ExactSum exact_element(const OwnedTensor& a, bool transpose_a, const OwnedTensor& b,
                              bool transpose_b, std::int64_t k, std::int64_t i, std::int64_t j) {
  ExactSum sum;
  const std::int64_t a_ld = a->dim(-1), b_ld = b->dim(-1);
  for (std::int64_t d = 0; d < k; ++d) {
    sum.add(a.at(transpose_a ? d * a_ld + i : i * a_ld + d) *
            b.at(transpose_b ? j * b_ld + d : d * b_ld + j));
  }
  return sum;
}

/// How far an fp32 sum of `terms` terms, stored as `dtype`, may be from the exact one: rounding
/// errors grow about as the square root of the number of terms; the store adds half a unit in the
/// last place.
inline double sum_tolerance(const ExactSum& exact, std::int64_t terms, DType dtype) {
  constexpr double kF32Eps = 0x1p-24, kBF16Eps = 0x1p-8;
  const double sum = (3.0 + std::sqrt(static_cast<double>(terms))) * kF32Eps * exact.magnitude;
  return sum + (dtype == DType::kBF16 ? kBF16Eps * (std::abs(exact.value) + sum) : 0.0) + 1e-30;
}

}  // namespace llmc::testing
