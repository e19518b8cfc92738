#include "llmc/core/shape.h"

#include <limits>
#include <ostream>

#include "llmc/core/error.h"

namespace llmc {

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  if (dims.size() > kMaxRank) {
    fail(ErrorKind::kInput, "shape", "expected at most ", kMaxRank, " dimensions, got ",
         dims.size());
  }
  std::int64_t product = 1;
  for (const std::int64_t d : dims) {
    if (d < 0) fail(ErrorKind::kInput, "shape", "expected sizes of 0 or more, got ", d);
    if (d > 0 && product > std::numeric_limits<std::int64_t>::max() / d) {
      fail(ErrorKind::kInput, "shape", "expected fewer than 2^63 elements, got more");
    }
    product *= d;
    dims_[static_cast<std::size_t>(rank_++)] = d;
  }
}

std::int64_t Shape::dim(int i) const {
  const int index = i < 0 ? i + rank_ : i;
  if (index < 0 || index >= rank_) {
    fail(ErrorKind::kInput, "shape", "expected a dimension of ", str(), ", got index ", i);
  }
  return dims_[static_cast<std::size_t>(index)];
}

std::int64_t Shape::numel() const {
  std::int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= dims_[static_cast<std::size_t>(i)];
  return product;
}

std::string Shape::str() const {
  return concat(*this);
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '(';
  for (int i = 0; i < shape.rank(); ++i) out << (i > 0 ? ", " : "") << shape.dim(i);
  return out << ')';
}

}  // namespace llmc
