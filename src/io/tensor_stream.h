#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"
#include "llmc/io/weight_source.h"

namespace llmc {

/// Takes the next elements, as they are to be stored.
using WriteElements = std::function<void(const void* data, std::int64_t count)>;

/// Whether elements of one type can be stored or loaded as the other: equal, or f32 and bf16.
bool is_convertible(DType a, DType b);

/// Fills a tensor from elements stored as `stored`, in pieces through host memory. bf16 rounds to
/// nearest. dst: any shape.
void load_tensor(Stream& stream, const Tensor& dst, DType stored, const ReadElements& read);

/// Hands `numel` elements over in pieces, front to back, converted from `stored` to `wanted`.
void convert_elements(std::int64_t numel, DType stored, const ReadElements& read, DType wanted,
                      const WriteElements& write);

}  // namespace llmc
