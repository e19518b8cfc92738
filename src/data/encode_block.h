#pragma once

#include <cstdint>
#include <vector>

#include "data/text_blocks.h"
#include "llmc/data/prepare.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

/// A document, or a part of one, as it stands in a block's tokens.
struct EncodedDocument {
  std::int64_t tokens = 0;  ///< end-of-text included
  std::int64_t bytes = 0;   ///< of text
  double bits = 0;          ///< of the text, where the source knows them
  bool continues = false;   ///< it began in an earlier block
};

struct EncodedBlock {
  std::vector<std::int32_t> ids;
  std::vector<EncodedDocument> documents;  ///< fill `ids`, one after the other
  std::uint64_t consumed = 0;              ///< TextBlock's
};

/// Finds the documents of a block and encodes each, preceded by end-of-text. A line of JSON Lines
/// without the text is an input error that names the file and the number of the line.
EncodedBlock encode_block(const TextBlock& block, const PrepareOptions& options,
                          const Tokenizer& tokenizer);

}  // namespace llmc
