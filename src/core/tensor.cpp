#include "llmc/core/tensor.h"

#include <cstddef>

#include "llmc/core/error.h"

namespace llmc {
namespace {

void* offset(void* data, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(data) + static_cast<std::size_t>(elements) * size_of(dtype);
}

}  // namespace

void Tensor::check_dtype(DType expected) const {
  if (dtype_ != expected) {
    fail(ErrorKind::kInput, "tensor", "expected dtype ", name_of(expected), ", got ",
         name_of(dtype_), " for a tensor of shape ", shape_);
  }
}

Tensor Tensor::view(Shape shape) const {
  if (shape.numel() != shape_.numel()) {
    fail(ErrorKind::kInput, "tensor", "cannot view ", shape_, " as ", shape,
         ": the element counts differ");
  }
  return {data_, dtype_, shape};
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  const std::int64_t count = shape_.dim(0);
  if (begin < 0 || begin > end || end > count) {
    fail(ErrorKind::kInput, "tensor", "expected rows within 0..", count, ", got ", begin, "..",
         end);
  }
  const std::int64_t stride = count == 0 ? 0 : shape_.numel() / count;
  Shape shape;
  switch (shape_.rank()) {
    case 1:
      shape = {end - begin};
      break;
    case 2:
      shape = {end - begin, shape_.dim(1)};
      break;
    case 3:
      shape = {end - begin, shape_.dim(1), shape_.dim(2)};
      break;
    default:
      shape = {end - begin, shape_.dim(1), shape_.dim(2), shape_.dim(3)};
  }
  return {offset(data_, begin * stride, dtype_), dtype_, shape};
}

Tensor Tensor::flat(std::int64_t begin, std::int64_t count) const {
  if (begin < 0 || count < 0 || begin > numel() - count) {
    fail(ErrorKind::kInput, "tensor", "expected elements within 0..", numel(), ", got ", begin,
         " + ", count);
  }
  return {offset(data_, begin, dtype_), dtype_, Shape{count}};
}

}  // namespace llmc
