#pragma once

// The elements of tensors that a model or an optimizer owns, by copies: they may be on a GPU.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "llmc/core/device.h"

namespace llmc::testing {

/// Sets every element, rounded to the tensor's dtype. tensor: any shape, f32 or bf16.
inline void write_values(Stream& stream, const Tensor& tensor, const std::vector<float>& values) {
  if (tensor.dtype() == DType::kF32) {
    copy_from_host(stream, tensor, values.data());
    return;
  }
  std::vector<bf16> low(values.size());
  std::transform(values.begin(), values.end(), low.begin(), to_bf16);
  copy_from_host(stream, tensor, low.data());
}

/// Every element. tensor: any shape, f32 or bf16.
inline std::vector<float> read_values(Stream& stream, const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  if (tensor.dtype() == DType::kF32) {
    copy_to_host(stream, values.data(), tensor);
    return values;
  }
  std::vector<bf16> low(values.size());
  copy_to_host(stream, low.data(), tensor);
  std::transform(low.begin(), low.end(), values.begin(), to_f32);
  return values;
}

/// The bytes as they are stored. tensor: any shape and dtype.
inline std::vector<char> read_bytes(Stream& stream, const Tensor& tensor) {
  std::vector<char> bytes(tensor.bytes());
  copy_to_host(stream, bytes.data(), tensor);
  return bytes;
}

}  // namespace llmc::testing
