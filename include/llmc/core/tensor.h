#pragma once

#include <cstdint>

#include "llmc/core/dtype.h"
#include "llmc/core/shape.h"

namespace llmc {

/// A view of contiguous row-major elements in a Device's memory. It owns nothing and must not
/// outlive the Buffer or Arena it points into. Copies are cheap; like a pointer, a const Tensor
/// does not make its elements const. A default Tensor is empty: ops take it for "not there".
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}

  bool empty() const { return data_ == nullptr; }
  explicit operator bool() const { return !empty(); }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t dim(int i) const { return shape_.dim(i); }
  std::int64_t numel() const { return empty() ? 0 : shape_.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype_); }

  /// Address of the first element; throws an input error if T is not the tensor's type.
  template <class T>
  T* data() const {
    check_dtype(DTypeOf<T>::value);
    return static_cast<T*>(data_);
  }
  void* raw() const { return data_; }

  /// The same elements under another shape of the same element count.
  Tensor view(Shape shape) const;
  /// Rows [begin, end) of the first dimension.
  Tensor rows(std::int64_t begin, std::int64_t end) const;
  /// `count` elements from flat index `begin`, as a vector.
  Tensor flat(std::int64_t begin, std::int64_t count) const;

 private:
  void check_dtype(DType expected) const;

  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

}  // namespace llmc
