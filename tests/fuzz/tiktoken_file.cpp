#include "data/bpe_tokenizer.h"
#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const llmc::testing::FuzzFile file(data, size);
  const std::string text = "one text, all bytes: \xff";
  try {
    llmc::is_tiktoken_file(file.path());
    llmc::BpeModel model = llmc::read_tiktoken_file(file.path());
    llmc::add_merges_by_rank(model);
    model.pattern = llmc::SplitPattern::kLlama3;
    model.whole_pieces = true;
    const llmc::BpeTokenizer tokenizer(std::move(model), llmc::BpeTokenizer::Files::kRanks);
    const llmc::Tokenizer& base = tokenizer;
    if (base.decode(base.encode(text)) != text) std::abort();
  } catch (const llmc::Error&) {
  }
  return 0;
}
