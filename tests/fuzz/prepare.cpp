// Documents of a text, cut into blocks and not.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "data/encode_block.h"
#include "data/text_cut.h"
#include "llmc/core/error.h"
#include "llmc/data/tokenizer.h"

namespace {

using namespace llmc;

std::vector<std::int32_t> encode(std::string text, const PrepareOptions& options, bool continues,
                                 const InputFile& input) {
  static const auto tokenizer = make_byte_tokenizer();
  TextBlock block;
  block.text = std::move(text);
  block.input = &input;
  block.continues = continues;
  const EncodedBlock encoded = encode_block(block, options, *tokenizer);
  std::int64_t tokens = 0;
  for (const EncodedDocument& document : encoded.documents) tokens += document.tokens;
  if (tokens != static_cast<std::int64_t>(encoded.ids.size())) std::abort();
  return encoded.ids;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  PrepareOptions options;
  constexpr DocumentSplit kSplits[] = {DocumentSplit::kFile, DocumentSplit::kLine,
                                       DocumentSplit::kBlankLine, DocumentSplit::kDelimiter,
                                       DocumentSplit::kNone};
  options.split = kSplits[data[0] % 5];
  if (options.split == DocumentSplit::kDelimiter) options.delimiter = "aba";
  InputFile input;
  input.json_lines = data[0] >= 128;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const auto whole = encode(text, options, false, input);
    // A cut within the first document, where no separator begins before it.
    const std::size_t end = std::min(text.find(separator_of(options)), text.size());
    const std::size_t cut = separator_of(options).empty() || input.json_lines
                                ? last_safe_cut(text)
                                : last_safe_cut(std::string_view(text).substr(0, end));
    if (cut == 0 || input.json_lines) return 0;
    auto parts = encode(text.substr(0, cut), options, false, input);
    const auto second = encode(text.substr(cut), options, true, input);
    parts.insert(parts.end(), second.begin(), second.end());
    if (parts != whole) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
