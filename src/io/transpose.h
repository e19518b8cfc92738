#pragma once

#include <cstddef>
#include <cstdint>

#include "io/tensor_stream.h"

namespace llmc {

// Linear weights are (out, in) here and (in, out) in Hugging Face's files. Both directions go
// through a block of whole rows of (out, in), so that memory stays bounded for any matrix.

/// Elements of such a block: 32 MB of fp32.
inline constexpr std::int64_t kTransposeElements = std::int64_t{1} << 23;

/// Reads a matrix (out, in) from front to back; `read` reads its stored transpose (in, out)
/// anywhere. element: bytes of one, 2 or 4.
ReadElements transposed_reader(std::int64_t out, std::int64_t in, std::size_t element,
                               ReadElements read, std::int64_t block_elements = kTransposeElements);

/// Takes elements [begin, begin + count) of a tensor, in any order.
using WriteElementsAt =
    std::function<void(std::int64_t begin, const void* data, std::int64_t count)>;

/// Takes a matrix (out, in) from front to back and hands its transpose (in, out) to `write`. The
/// last elements arrive with the last row.
WriteElements transposed_writer(std::int64_t out, std::int64_t in, std::size_t element,
                                WriteElementsAt write,
                                std::int64_t block_elements = kTransposeElements);

}  // namespace llmc
