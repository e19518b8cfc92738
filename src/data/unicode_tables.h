#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace llmc {

/// Code points first to last, both included.
struct CodePointRange {
  std::uint32_t first;
  std::uint32_t last;
};

/// Unicode's categories L and N, ascending.
extern const CodePointRange kLetterRanges[];
extern const std::size_t kLetterRangeCount;
extern const CodePointRange kNumberRanges[];
extern const std::size_t kNumberRangeCount;

}  // namespace llmc
