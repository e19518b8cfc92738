#include "io/transpose.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace llmc {
namespace {

// Side of the squares that a block is transposed in: a row of 4-byte elements fills a cache line.
constexpr std::int64_t kTile = 16;

template <class T>
void transpose_as(T* dst, std::int64_t dst_width, const T* src, std::int64_t src_width,
                  std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const std::int64_t r1 = std::min(r0 + kTile, rows);
    for (std::int64_t c = 0; c < columns; ++c) {
      for (std::int64_t r = r0; r < r1; ++r) dst[c * dst_width + r] = src[r * src_width + c];
    }
  }
}

/// dst (columns, rows) of a wider matrix becomes the transpose of src (rows, columns).
void transpose(char* dst, std::int64_t dst_width, const char* src, std::int64_t src_width,
               std::int64_t rows, std::int64_t columns, std::size_t element) {
  if (element == sizeof(std::uint32_t)) {
    transpose_as(reinterpret_cast<std::uint32_t*>(dst), dst_width,
                 reinterpret_cast<const std::uint32_t*>(src), src_width, rows, columns);
  } else {
    transpose_as(reinterpret_cast<std::uint16_t*>(dst), dst_width,
                 reinterpret_cast<const std::uint16_t*>(src), src_width, rows, columns);
  }
}

/// A block of whole rows of (out, in).
struct Block {
  Block(std::int64_t all_out, std::int64_t all_in, std::size_t element_bytes,
        std::int64_t block_elements)
      : out(all_out),
        in(all_in),
        element(element_bytes),
        max_rows(std::clamp<std::int64_t>(block_elements / all_in, 1, all_out)),
        data(bytes(max_rows * in)) {}

  std::int64_t out, in;
  std::size_t element;
  std::int64_t max_rows;
  std::vector<char> data;  // (rows, in)
  std::int64_t first = 0;  // row of (out, in) that the block begins with
  std::int64_t rows = 0;   // rows in the block

  std::size_t bytes(std::int64_t count) const { return static_cast<std::size_t>(count) * element; }
};

/// Fills the block with the rows that follow it. A few stored rows at a time, so that each pass
/// over the block fills cache lines.
void read_next(Block& block, const ReadElements& read, std::vector<char>& stripe) {
  block.first += block.rows;
  block.rows = std::min(block.max_rows, block.out - block.first);
  stripe.resize(block.bytes(kTile * block.rows));
  for (std::int64_t r0 = 0; r0 < block.in; r0 += kTile) {
    const std::int64_t n = std::min(kTile, block.in - r0);
    for (std::int64_t r = 0; r < n; ++r) {
      read((r0 + r) * block.out + block.first, block.rows,
           stripe.data() + block.bytes(r * block.rows));
    }
    transpose(block.data.data() + block.bytes(r0), block.in, stripe.data(), block.rows, n,
              block.rows, block.element);
  }
}

void write_out(Block& block, const WriteElementsAt& write, std::vector<char>& stripe) {
  stripe.resize(block.bytes(kTile * block.rows));
  for (std::int64_t r0 = 0; r0 < block.in; r0 += kTile) {
    const std::int64_t n = std::min(kTile, block.in - r0);
    transpose(stripe.data(), block.rows, block.data.data() + block.bytes(r0), block.in, block.rows,
              n, block.element);
    for (std::int64_t r = 0; r < n; ++r) {
      write((r0 + r) * block.out + block.first, stripe.data() + block.bytes(r * block.rows),
            block.rows);
    }
  }
  block.first += block.rows;
  block.rows = 0;
}

}  // namespace

ReadElements transposed_reader(std::int64_t out, std::int64_t in, std::size_t element,
                               ReadElements read, std::int64_t block_elements) {
  // Shared, because a std::function copies what it holds.
  const auto block = std::make_shared<Block>(out, in, element, block_elements);
  const auto stripe = std::make_shared<std::vector<char>>();
  return [=, read = std::move(read)](std::int64_t begin, std::int64_t count, void* to) {
    auto* target = static_cast<char*>(to);
    while (count > 0) {
      if (begin >= (block->first + block->rows) * in) read_next(*block, read, *stripe);
      const std::int64_t skip = begin - block->first * in;
      const std::int64_t n = std::min(count, block->rows * in - skip);
      std::memcpy(target, block->data.data() + block->bytes(skip), block->bytes(n));
      target += block->bytes(n);
      begin += n;
      count -= n;
    }
  };
}

WriteElements transposed_writer(std::int64_t out, std::int64_t in, std::size_t element,
                                WriteElementsAt write, std::int64_t block_elements) {
  const auto block = std::make_shared<Block>(out, in, element, block_elements);
  const auto stripe = std::make_shared<std::vector<char>>();
  const auto filled = std::make_shared<std::int64_t>(0);  // elements in the block
  return [=, write = std::move(write)](const void* data, std::int64_t count) {
    const auto* from = static_cast<const char*>(data);
    while (count > 0) {
      const std::int64_t size = std::min(block->max_rows, out - block->first) * in;
      const std::int64_t n = std::min(count, size - *filled);
      std::memcpy(block->data.data() + block->bytes(*filled), from, block->bytes(n));
      from += block->bytes(n);
      count -= n;
      *filled += n;
      if (*filled < size) continue;
      block->rows = size / in;
      write_out(*block, write, *stripe);
      *filled = 0;
    }
  };
}

}  // namespace llmc
