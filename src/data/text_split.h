#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace llmc {

/// How a text is cut into pieces before bytes are merged: pairs never reach across a cut.
enum class SplitPattern : std::uint8_t {
  /// GPT-2 (Radford et al., 2019):
  ///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  /// Llama 3:
  ///   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
  ///    ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kLlama3,
};

/// The pattern as a regular expression.
std::string_view regular_expression(SplitPattern pattern);

/// The end of the piece that begins at text[begin], which must exist. Every byte of a text belongs
/// to a piece. A byte that is no part of a UTF-8 character counts as a character that is neither
/// letter, number nor space.
std::size_t piece_end(SplitPattern pattern, std::string_view text, std::size_t begin);

}  // namespace llmc
