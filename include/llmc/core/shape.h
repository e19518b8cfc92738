#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

namespace llmc {

/// Up to four non-negative 64-bit sizes, row-major: the last one is contiguous. A default Shape is
/// a scalar (rank 0, one element).
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  /// Throws an input error for a negative size, more than four sizes or a product over 2^63.
  Shape(std::initializer_list<std::int64_t> dims);

  int rank() const { return rank_; }
  /// Size of dimension i; negative i counts from the end. Throws if there is no such dimension.
  std::int64_t dim(int i) const;
  std::int64_t numel() const;
  bool operator==(const Shape&) const = default;

  /// "(2, 3, 4)".
  std::string str() const;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace llmc
