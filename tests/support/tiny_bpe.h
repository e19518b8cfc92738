#pragma once

#include <memory>
#include <string>

#include "data/bpe_tokenizer.h"

namespace llmc::testing {

/// A byte-pair tokenizer of 258 ids: the bytes, "th", and end-of-text.
inline std::unique_ptr<Tokenizer> make_tiny_bpe() {
  BpeModel model;
  for (int byte = 0; byte < 256; ++byte) {
    model.tokens.push_back(std::string(1, static_cast<char>(byte)));
  }
  model.tokens.push_back("th");
  model.tokens.push_back(kEndOfText);
  model.merges.add({'t', 'h', 256});
  model.special = {257};
  model.begin_of_text = model.end_of_text = 257;
  return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kJson);
}

}  // namespace llmc::testing
