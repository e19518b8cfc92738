#include <array>

#include "fuzz/fuzz_file.h"
#include "llmc/data/tokenizer.h"

namespace {

/// All bytes, end-of-text and a few merges, as an llm.c tokenizer file.
std::unique_ptr<llmc::Tokenizer> make_tokenizer() {
  const std::array<std::string, 8> merges{"th", "the", " a", " th", " the", "in", "ing", "  "};
  const std::array<std::uint32_t, 256> header{20240328, 2, 257 + merges.size(), 256};
  std::string bytes(reinterpret_cast<const char*>(header.data()), sizeof header);
  const auto put = [&](const std::string& token) {
    bytes += static_cast<char>(token.size());
    bytes += token;
  };
  for (int b = 0; b < 256; ++b) put(std::string(1, static_cast<char>(b)));
  put("<|endoftext|>");
  for (const std::string& token : merges) put(token);
  const llmc::testing::FuzzFile file(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                     bytes.size());
  return llmc::load_llmc_tokenizer(file.path());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tokenizer = make_tokenizer();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto ids = tokenizer->encode(text);
  std::string streamed;
  llmc::StreamDecoder decoder(*tokenizer);
  for (const std::int32_t id : ids) streamed += decoder.push(id);
  streamed += decoder.finish();
  if (tokenizer->decode(ids) != text || streamed != text) std::abort();
  return 0;
}
