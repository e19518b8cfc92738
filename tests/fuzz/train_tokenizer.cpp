#include <cstdlib>
#include <string>

#include "llmc/data/tokenizer_trainer.h"

// The input is the text to learn from, after two bytes of options.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  llmc::TokenizerTrainerOptions options;
  options.vocab_size = 260 + data[0];
  options.min_frequency = 1 + data[1] % 4;
  options.special_tokens = {"<a>", "ab"};
  options.threads = 1;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  llmc::TokenizerTrainer trainer(options);
  trainer.add(text);
  if (text.empty()) return 0;
  const auto tokenizer = trainer.train();
  const auto ids = tokenizer->encode(text);
  if (tokenizer->vocab_size() > options.vocab_size) std::abort();
  if (tokenizer->decode(ids) != text || ids.size() > text.size()) std::abort();
  return 0;
}
