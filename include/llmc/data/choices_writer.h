#pragma once

#include <cstdint>
#include <filesystem>

#include "llmc/data/tokenizer.h"

namespace llmc {

/// Turns multiple choice examples, JSON Lines {"ctx": text, "endings": [four texts], "label":
/// number}, into llm.c's binary file (docs/formats.md) as llm.c does: the context and each ending,
/// with a space in front, become tokens on their own. Returns the number of examples. A line that
/// is anything else is an input error with its number, as is what the format cannot hold: more than
/// 65,535 examples, a token above 65,534, or an example of more than 65,535 bytes.
std::int64_t write_choices(const std::filesystem::path& to, const std::filesystem::path& json_lines,
                           const Tokenizer& tokenizer);

}  // namespace llmc
