#include <nlohmann/json.hpp>

#include "data/byte_characters.h"
#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"
#include "llmc/data/tokenizer.h"

namespace {

using nlohmann::json;

/// A tokenizer.json with all bytes and two merges.
json small_tokenizer() {
  json vocab, merges = {"t h", json{"th", "e"}};
  for (const char c : llmc::bytes_in_order()) vocab[llmc::to_printable({&c, 1})] = vocab.size();
  vocab["th"] = 256;
  vocab["the"] = 257;
  return {{"added_tokens", {{{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

void load(const std::string& text) {
  const llmc::testing::FuzzFile file(reinterpret_cast<const std::uint8_t*>(text.data()),
                                     text.size());
  const std::string sample = "the text, all bytes: \xff";
  try {
    const auto tokenizer = llmc::load_tokenizer_json(file.path());
    if (tokenizer->decode(tokenizer->encode(sample)) != sample) std::abort();
  } catch (const llmc::Error&) {
  }
}

}  // namespace

// The input is the file, and a merge patch (RFC 7396) to a good one.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  load(text);
  const json patch = json::parse(text, nullptr, false);
  if (!patch.is_object()) return 0;
  json patched = small_tokenizer();
  patched.merge_patch(patch);
  load(patched.dump(-1, ' ', false, json::error_handler_t::replace));
  return 0;
}
