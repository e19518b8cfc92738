#include "ops/check.h"

#include "llmc/core/error.h"

namespace llmc {
namespace {

template <class... Expected>
[[noreturn]] void fail_expectation(std::string_view op, std::string_view name, const Tensor& tensor,
                                   const Expected&... expected) {
  if (tensor.empty()) {
    fail(ErrorKind::kInput, op, name, ": expected ", expected..., ", got an empty tensor");
  }
  fail(ErrorKind::kInput, op, name, ": expected ", expected..., ", got ", name_of(tensor.dtype()),
       " ", tensor.shape());
}

}  // namespace

void expect(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype,
            const Shape& shape) {
  if (tensor.empty() || tensor.dtype() != dtype || tensor.shape() != shape) {
    fail_expectation(op, name, tensor, name_of(dtype), " ", shape);
  }
}

void expect_count(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype,
                  std::int64_t count) {
  if (tensor.empty() || tensor.dtype() != dtype || tensor.numel() != count) {
    fail_expectation(op, name, tensor, count, " elements of ", name_of(dtype));
  }
}

void expect_float(std::string_view op, std::string_view name, const Tensor& tensor) {
  if (tensor.empty() || (tensor.dtype() != DType::kF32 && tensor.dtype() != DType::kBF16)) {
    fail_expectation(op, name, tensor, "f32 or bf16");
  }
}

std::int64_t expect_rows(std::string_view op, std::string_view name, const Tensor& tensor,
                         std::int64_t columns) {
  if (tensor.empty() || tensor.shape().rank() < 1 || tensor.dim(-1) != columns || columns == 0) {
    fail_expectation(op, name, tensor, "rows of ", columns, " elements, at least 1,");
  }
  return tensor.numel() / columns;
}

void expect_scratch(std::string_view op, const Tensor& scratch, std::int64_t bytes) {
  if (bytes > 0 && (scratch.empty() || scratch.dtype() != DType::kU8 || scratch.numel() < bytes)) {
    fail_expectation(op, "scratch", scratch, "at least ", bytes, " elements of u8");
  }
}

}  // namespace llmc
