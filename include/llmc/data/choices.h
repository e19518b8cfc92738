#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "llmc/data/tokenizer.h"

namespace llmc {

/// One answer to a question.
struct ChoiceEnding {
  std::vector<std::int32_t> tokens;  ///< at least one
  /// Of its text, without the space that joins it to the context; 0: unknown.
  std::int64_t characters = 0;
};

/// A question with several answers, of which one is right.
struct ChoiceExample {
  std::vector<std::int32_t> context;  ///< at least one token
  std::vector<ChoiceEnding> endings;  ///< at least one
  std::int64_t label = 0;             ///< number of the right ending
};

/// Reads a set of examples: llm.c's binary file (docs/formats.md), known by its magic number, or
/// JSON Lines, one {"ctx": text, "endings": [texts], "label": number} a line.
///
/// A line is turned into tokens as EleutherAI's lm-evaluation-harness does it: an ending is joined
/// to the context by a space, together with which the white space at the context's end counts as
/// part of the ending; both are encoded together, and the ending's tokens are those beyond the ones
/// of the context alone. An empty context stands for end-of-text.
///
/// tokenizer: needed for JSON Lines, a config error without; for the binary file it tells the
/// characters of the endings, and may be null. Anything wrong in the file is an input error that
/// names it and the line or example, both counted from 1.
std::vector<ChoiceExample> read_choices(const std::filesystem::path& path,
                                        const Tokenizer* tokenizer);

/// Throws an input error that names the first example a model cannot be asked: with a token not
/// below vocab_size, or with an ending of more than seq_len tokens.
void check_choices(std::span<const ChoiceExample> examples, std::int64_t vocab_size,
                   std::int64_t seq_len);

/// Checksum64 of all that they hold.
std::uint64_t checksum_of(std::span<const ChoiceExample> examples);

/// Turns multiple choice examples, JSON Lines {"ctx": text, "endings": [four texts], "label":
/// number}, into llm.c's binary file (docs/formats.md) as llm.c does: the context and each ending,
/// with a space in front, become tokens on their own. Returns the number of examples. A line that
/// is anything else is an input error with its number, as is what the format cannot hold: more than
/// 65,535 examples, a token above 65,534, or an example of more than 65,535 bytes.
std::int64_t write_choices(const std::filesystem::path& to, const std::filesystem::path& json_lines,
                           const Tokenizer& tokenizer);

}  // namespace llmc
