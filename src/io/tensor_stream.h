#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// Fills `out` with elements [begin, begin + count), as stored.
using ReadElements = std::function<void(std::int64_t begin, std::int64_t count, void* out)>;
/// Takes the next bytes, as they are to be stored.
using WriteBytes = std::function<void(const void* data, std::size_t bytes)>;

/// Whether elements of one type can be stored or loaded as the other: equal, or f32 and bf16.
bool is_convertible(DType a, DType b);

/// Fills a tensor from elements stored as `stored`, in pieces through host memory. bf16 rounds to
/// nearest. dst: any shape.
void load_tensor(Stream& stream, const Tensor& dst, DType stored, const ReadElements& read);

/// Hands a tensor over as elements of type `stored`, in pieces. src: any shape.
void store_tensor(Stream& stream, const Tensor& src, DType stored, const WriteBytes& write);

}  // namespace llmc
