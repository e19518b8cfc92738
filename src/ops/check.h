#pragma once

#include <cstdint>
#include <string_view>

#include "llmc/core/tensor.h"

namespace llmc {

// What ops require of their arguments, for every backend. Each throws an input error
// "[op] name: expected …, got …".

/// A tensor of exactly this dtype and shape.
void expect(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype,
            const Shape& shape);

/// A tensor of this dtype and element count, whatever its shape.
void expect_count(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype,
                  std::int64_t count);

/// A tensor of f32 or bf16.
void expect_float(std::string_view op, std::string_view name, const Tensor& tensor);

/// A tensor of rank 1 or more with `columns` elements in the last dimension; returns the product of
/// the others.
std::int64_t expect_rows(std::string_view op, std::string_view name, const Tensor& tensor,
                         std::int64_t columns);

/// An op's scratch of at least `bytes` bytes.
void expect_scratch(std::string_view op, const Tensor& scratch, std::int64_t bytes);

}  // namespace llmc
