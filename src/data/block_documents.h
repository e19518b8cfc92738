#pragma once

#include <functional>
#include <string_view>

#include "data/text_blocks.h"
#include "llmc/data/prepare.h"

namespace llmc {

/// A document, or the part of one that is in a block.
struct BlockDocument {
  std::string_view text;
  double bits = 0;         ///< of the text, where the source knows them
  bool continues = false;  ///< it began in an earlier block
};

/// Calls `take` for each document of a block, in order. A line of JSON Lines without the text is an
/// input error that names the file and the number of the line.
void for_each_document(const TextBlock& block, const PrepareOptions& options,
                       const std::function<void(const BlockDocument&)>& take);

}  // namespace llmc
