#pragma once

#include <cstddef>
#include <string_view>

namespace llmc {

/// The last place within a text where a document can be cut in two without changing its tokens,
/// whatever follows the text; 0 if there is none. It holds for the byte tokenizer and for the
/// splitting patterns of GPT-2 and Llama 3, in which no piece goes on from a letter to anything but
/// a letter, nor from a digit to white space.
std::size_t last_safe_cut(std::string_view text);

/// The last place that does not split a UTF-8 character, not more than 3 bytes before the end.
std::size_t last_character_border(std::string_view text);

}  // namespace llmc
