#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"
#include "llmc/data/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const llmc::testing::FuzzFile file(data, size);
  const std::string text = "one text, all bytes: \xff";
  try {
    const auto tokenizer = llmc::load_llmc_tokenizer(file.path());
    if (tokenizer->decode(tokenizer->encode(text)) != text) std::abort();
  } catch (const llmc::Error&) {
  }
  return 0;
}
