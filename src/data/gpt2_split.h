#pragma once

#include <cstddef>
#include <string_view>

namespace llmc {

/// The end of the piece that begins at text[begin], which must exist, when text is split as GPT-2
/// does before merging bytes (Radford et al., 2019), that is by the pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// Every byte of a text belongs to a piece. A byte that is no part of a UTF-8 character counts as a
/// character of the third group.
std::size_t gpt2_piece_end(std::string_view text, std::size_t begin);

}  // namespace llmc
