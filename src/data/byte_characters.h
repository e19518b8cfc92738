#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace llmc {

// GPT-2's vocabulary files write each byte as a printable character: as the character of that
// number if Latin-1 prints it, else as one from U+0100 on.

/// The characters of bytes.
std::string to_printable(std::string_view bytes);

/// The bytes that a printable text stands for; nothing if a character stands for none.
std::optional<std::string> from_printable(std::string_view text);

/// All bytes in the order of their characters, which is that of their ids in GPT-2's vocabulary.
const std::string& bytes_in_order();

}  // namespace llmc
