#include "llmc/data/choices.h"

#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"

namespace {

void read(const std::filesystem::path& path, const llmc::Tokenizer* tokenizer) {
  try {
    for (const llmc::ChoiceExample& example : llmc::read_choices(path, tokenizer)) {
      if (example.context.empty() || example.endings.empty()) std::abort();
      if (example.label < 0 || example.label >= std::ssize(example.endings)) std::abort();
      for (const llmc::ChoiceEnding& ending : example.endings) {
        if (ending.tokens.empty() || ending.characters < 0) std::abort();
      }
    }
  } catch (const llmc::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tokenizer = llmc::make_byte_tokenizer();
  const llmc::testing::FuzzFile input(data, size);
  read(input.path(), tokenizer.get());
  read(input.path(), nullptr);
  return 0;
}
