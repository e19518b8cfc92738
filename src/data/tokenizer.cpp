#include "llmc/data/tokenizer.h"

#include <array>
#include <cstdio>
#include <optional>
#include <system_error>

#include "data/bpe_tokenizer.h"
#include "data/unicode.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLlmcName = "tokenizer.bin";
constexpr const char* kJsonName = "tokenizer.json";
constexpr const char* kRanksName = "tokenizer.tiktoken";
constexpr const char* kMetaName = "tokenizer.model";

/// How the names of a vocabulary and its merges end, for the two conventions.
struct PairNames {
  std::string_view vocab;
  std::string_view merges;
};
constexpr PairNames kPairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
constexpr std::string_view kPrefixes[] = {"", "gpt2_"};

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() {
    for (std::size_t b = 0; b < bytes_.size(); ++b) bytes_[b] = static_cast<char>(b);
  }

  std::string name() const override { return "byte"; }
  std::int64_t vocab_size() const override { return 257; }
  std::int32_t end_of_text() const override { return 256; }

  std::string_view token_bytes(std::int32_t id) const override {
    if (id == end_of_text()) return kEndOfText;
    if (id < 0 || id > end_of_text()) {
      fail(ErrorKind::kInput, "tokenizer", "expected a token id below ", vocab_size(), ", got ",
           id);
    }
    return {bytes_.data() + id, 1};
  }

  void encode(std::vector<std::int32_t>& ids, std::string_view text) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }

  void save(const fs::path& folder) const override {
    make_folders(folder);
    remove_saved_tokenizer(folder);
    save_llmc_tokenizer(*this, folder / kLlmcName);
  }

 private:
  std::array<char, 256> bytes_{};
};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// The tokenizer of a folder, or null if it holds none.
std::unique_ptr<Tokenizer> load_folder(const fs::path& folder) {
  if (is_file(folder / kJsonName)) return load_tokenizer_json(folder / kJsonName);
  for (const std::string_view prefix : kPrefixes) {
    for (const PairNames& pair : kPairs) {
      const fs::path vocab = folder / concat(prefix, pair.vocab);
      const fs::path merges = folder / concat(prefix, pair.merges);
      if (is_file(vocab) && is_file(merges)) return load_gpt2_tokenizer(vocab, merges);
    }
  }
  if (is_file(folder / kRanksName)) return load_tiktoken(folder / kRanksName);
  if (is_file(folder / kMetaName) && is_tiktoken_file(folder / kMetaName)) {
    return load_tiktoken(folder / kMetaName);
  }
  for (const std::string_view prefix : kPrefixes) {
    const fs::path file = folder / concat(prefix, kLlmcName);
    if (is_file(file)) return load_llmc_tokenizer(file);
  }
  return nullptr;
}

/// `name` with its end replaced, if it ends so.
std::optional<std::string> replace_end(const std::string& name, std::string_view end,
                                       std::string_view with) {
  if (!std::string_view(name).ends_with(end)) return std::nullopt;
  return name.substr(0, name.size() - end.size()).append(with);
}

std::unique_ptr<Tokenizer> load_file(const fs::path& file) {
  const std::string name = file.filename().string();
  for (const PairNames& pair : kPairs) {
    if (const auto merges = replace_end(name, pair.vocab, pair.merges)) {
      return load_gpt2_tokenizer(file, file.parent_path() / *merges);
    }
    if (const auto vocab = replace_end(name, pair.merges, pair.vocab)) {
      return load_gpt2_tokenizer(file.parent_path() / *vocab, file);
    }
  }
  if (name.ends_with(".json")) return load_tokenizer_json(file);
  if (name.ends_with(".tiktoken") || is_tiktoken_file(file)) return load_tiktoken(file);
  return load_llmc_tokenizer(file);
}

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encode(ids, text);
  return ids;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += token_bytes(id);
  return text;
}

std::string Tokenizer::hash() const {
  Checksum64 checksum;
  const auto add_number = [&](std::int64_t number) { checksum.update(&number, sizeof number); };
  add_number(vocab_size());
  add_number(end_of_text());
  for (std::int32_t id = 0; id < vocab_size(); ++id) {
    if (id == end_of_text()) continue;
    const std::string_view token = token_bytes(id);
    add_number(static_cast<std::int64_t>(token.size()));
    checksum.update(token.data(), token.size());
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(checksum.value()));
  return digits;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& name) {
  if (name == "byte") return make_byte_tokenizer();
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) {
    if (auto tokenizer = load_folder(name)) return tokenizer;
    fail(ErrorKind::kInput, "tokenizer", name.string(), ": expected ", kJsonName,
         ", vocab.json and merges.txt, encoder.json and vocab.bpe, ", kRanksName, " or ", kLlmcName,
         " in this folder, got none of them");
  }
  if (!is_file(name)) {
    fail(ErrorKind::kInput, "tokenizer", "expected 'byte', a folder or a file, got '",
         name.string(), "', which does not exist");
  }
  return load_file(name);
}

void remove_saved_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  for (const std::string_view name :
       {std::string_view(kLlmcName), std::string_view(kJsonName), std::string_view(kRanksName),
        kPairs[0].vocab, kPairs[0].merges}) {
    fs::remove(folder / name, ignored);
  }
}

std::string StreamDecoder::push(std::int32_t id) {
  pending_ += tokenizer_->token_bytes(id);
  std::size_t complete = 0;
  while (complete < pending_.size()) {
    const Utf8 utf8 = decode_utf8(pending_, complete);
    if (utf8.kind == Utf8::Kind::kIncomplete) break;
    complete += utf8.bytes;
  }
  std::string text = pending_.substr(0, complete);
  pending_.erase(0, complete);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  text.swap(pending_);
  return text;
}

}  // namespace llmc
