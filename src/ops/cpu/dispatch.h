#pragma once

#include <string_view>
#include <type_traits>

#include "llmc/core/dtype.h"
#include "llmc/core/tensor.h"
#include "ops/check.h"

namespace llmc::cpu {

/// Calls fn(std::type_identity<T>) with the element type of `tensor`, float or bf16; any other is
/// an input error.
template <class Fn>
void with_float_type(std::string_view op, std::string_view name, const Tensor& tensor,
                     const Fn& fn) {
  expect_float(op, name, tensor);
  if (tensor.dtype() == DType::kF32) {
    fn(std::type_identity<float>{});
  } else {
    fn(std::type_identity<bf16>{});
  }
}

}  // namespace llmc::cpu
