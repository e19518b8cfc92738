#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/bpe_tokenizer.h"

namespace llmc::testing {

/// A byte-pair tokenizer of 258 ids: the bytes, "th", and end-of-text.
inline std::unique_ptr<Tokenizer> make_tiny_bpe() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back("th");
  tokens.emplace_back(kEndOfText);
  MergeTable merges;
  merges.add({'t', 'h', 256});
  return std::make_unique<BpeTokenizer>(std::move(tokens), std::move(merges), 257);
}

}  // namespace llmc::testing
