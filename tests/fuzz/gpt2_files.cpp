#include <algorithm>

#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"
#include "llmc/data/tokenizer.h"

// The input is vocab.json, a zero byte, and merges.txt.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::uint8_t* const end = data + size;
  const std::uint8_t* const zero = std::find(data, end, 0);
  const std::uint8_t* const second = zero == end ? end : zero + 1;
  const llmc::testing::FuzzFile vocab(data, static_cast<std::size_t>(zero - data));
  const llmc::testing::FuzzFile merges(second, static_cast<std::size_t>(end - second));
  const std::string text = "one text, all bytes: \xff";
  try {
    const auto tokenizer = llmc::load_gpt2_tokenizer(vocab.path(), merges.path());
    if (tokenizer->decode(tokenizer->encode(text)) != text) std::abort();
  } catch (const llmc::Error&) {
  }
  return 0;
}
