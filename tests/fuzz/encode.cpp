#include <string>

#include "data/bpe_tokenizer.h"
#include "data/text_cut.h"
#include "llmc/data/tokenizer.h"

namespace {

/// All bytes, a few merges, and end-of-text.
std::unique_ptr<llmc::Tokenizer> make_tokenizer(llmc::SplitPattern pattern) {
  llmc::BpeModel model;
  for (int b = 0; b < 256; ++b) model.tokens.push_back(std::string(1, static_cast<char>(b)));
  for (const char* token : {"th", "the", " a", " th", " the", "in", "ing", "  "}) {
    model.tokens.push_back(token);
  }
  model.pattern = pattern;
  model.whole_pieces = pattern == llmc::SplitPattern::kLlama3;
  llmc::add_merges_by_rank(model);
  model.special = {model.tokens.size()};
  model.begin_of_text = model.end_of_text = model.special[0];
  model.tokens.push_back(llmc::kEndOfText);
  return std::make_unique<llmc::BpeTokenizer>(std::move(model), llmc::BpeTokenizer::Files::kRanks);
}

void round_trip(const llmc::Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text);
  std::string streamed;
  llmc::StreamDecoder decoder(tokenizer);
  for (const std::int32_t id : ids) streamed += decoder.push(id);
  streamed += decoder.finish();
  if (tokenizer.decode(ids) != text || streamed != text) std::abort();
  // Cut in two, a text keeps its ids.
  const std::size_t cut =
      llmc::last_safe_cut(std::string_view(text).substr(0, text.size() / 2 + 1));
  auto parts = tokenizer.encode(text.substr(0, cut));
  tokenizer.encode(parts, text.substr(cut));
  if (parts != ids) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto gpt2 = make_tokenizer(llmc::SplitPattern::kGpt2);
  static const auto llama3 = make_tokenizer(llmc::SplitPattern::kLlama3);
  const std::string text(reinterpret_cast<const char*>(data), size);
  round_trip(*gpt2, text);
  round_trip(*llama3, text);
  return 0;
}
