#include "data/encode_block.h"

#include "data/block_documents.h"

namespace llmc {

EncodedBlock encode_block(const TextBlock& block, const PrepareOptions& options,
                          const Tokenizer& tokenizer) {
  EncodedBlock result;
  result.ids.reserve(block.text.size() / 4);
  for_each_document(block, options, [&](const BlockDocument& found) {
    EncodedDocument document;
    document.continues = found.continues;
    document.bytes = static_cast<std::int64_t>(found.text.size());
    document.bits = found.bits;
    const std::size_t before = result.ids.size();
    if (options.split != DocumentSplit::kNone && !found.continues) {
      result.ids.push_back(tokenizer.begin_of_text());
    }
    tokenizer.encode(result.ids, found.text);
    document.tokens = static_cast<std::int64_t>(result.ids.size() - before);
    result.documents.push_back(document);
  });
  result.consumed = block.consumed;
  return result;
}

}  // namespace llmc
