#pragma once

#include <cstdint>

#include "llmc/core/error.h"
#include "llmc/core/tensor.h"

namespace llmc {

// What copies require of their arguments, for every backend.

inline void expect_same_size(const Tensor& dst, const Tensor& src) {
  if (dst.dtype() == src.dtype() && dst.numel() == src.numel()) return;
  fail(ErrorKind::kInput, "device", "copy: expected the same dtype and count, got ",
       name_of(dst.dtype()), " ", dst.shape(), " from ", name_of(src.dtype()), " ", src.shape());
}

inline void expect_columns(const Tensor& src, std::int64_t columns) {
  if (src.shape().rank() == 2 && columns >= 0 && columns <= src.dim(1)) return;
  fail(ErrorKind::kInput, "device", "copy: expected a matrix of at least ", columns,
       " columns, got ", src.shape());
}

}  // namespace llmc
