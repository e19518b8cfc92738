// llm.c's tokenizer file: 256 uint32 (magic, version, number of tokens, end-of-text, zeros), then
// for each id a byte that counts the token's bytes, and these.
#include <array>

#include "data/bpe_tokenizer.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

using Header = std::array<std::uint32_t, 256>;
constexpr std::uint32_t kMagic = 20240328;
constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kVersionWithoutEndOfText = 1;
constexpr std::uint32_t kGpt2Tokens = 50257;
constexpr std::size_t kLongestToken = 255;

struct Content {
  std::vector<std::string> tokens;
  std::int32_t end_of_text = 0;
};

Content read_content(const fs::path& path) {
  FileReader reader(path);
  if (reader.size() < sizeof(Header)) {
    fail(ErrorKind::kInput, "tokenizer", path.string(),
         ": expected a tokenizer file, which has at ", "least ", sizeof(Header), " bytes, got ",
         reader.size());
  }
  const auto header = reader.read_value<Header>();
  if (header[0] != kMagic) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected a tokenizer file (magic ",
         kMagic, "), got magic ", header[0]);
  }
  if (header[1] != kVersion && header[1] != kVersionWithoutEndOfText) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected version 1 or 2, got ",
         header[1]);
  }
  const std::uint32_t count = header[2];
  if (header[1] == kVersionWithoutEndOfText && count != kGpt2Tokens) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected ", kGpt2Tokens,
         " tokens in a file of version 1, got ", count);
  }
  const std::uint32_t end_of_text =
      header[1] == kVersionWithoutEndOfText ? kGpt2Tokens - 1 : header[3];
  if (count == 0 || count > reader.size() || end_of_text >= count) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected a number of tokens that fits ",
         "the file and an end-of-text below it, got ", count, " and ", end_of_text);
  }
  Content content;
  content.end_of_text = static_cast<std::int32_t>(end_of_text);
  content.tokens.reserve(count);
  for (std::uint32_t id = 0; id < count; ++id) {
    std::string token(reader.read_value<std::uint8_t>(), '\0');
    if (token.empty()) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected 1 to 255 bytes for token ",
           id, ", got 0");
    }
    reader.read(token.data(), token.size());
    content.tokens.push_back(std::move(token));
  }
  if (reader.position() != reader.size()) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected ", reader.position(),
         " bytes for its ", count, " tokens, got ", reader.size(), "; the file is too long");
  }
  return content;
}

bool is_byte_level(const Content& content) {
  if (content.tokens.size() != 257 || content.end_of_text != 256) return false;
  for (std::size_t b = 0; b < 256; ++b) {
    if (content.tokens[b] != std::string(1, static_cast<char>(b))) return false;
  }
  return true;
}

/// Fills `merges` with what the order of the ids implies: the parts of a token are what the merges
/// of lower ids leave of its bytes, and these must be two. Returns why that fails, or "".
std::string derive_merges(MergeTable& merges, const Content& content) {
  std::array<std::int32_t, 256> id_of_byte;
  id_of_byte.fill(-1);
  for (std::size_t id = 0; id < content.tokens.size(); ++id) {
    const std::string& token = content.tokens[id];
    if (token.size() != 1 || static_cast<std::int32_t>(id) == content.end_of_text) continue;
    std::int32_t& of_byte = id_of_byte[static_cast<unsigned char>(token[0])];
    if (of_byte >= 0) return concat("id ", id, " repeats the byte of id ", of_byte);
    of_byte = static_cast<std::int32_t>(id);
  }
  for (std::size_t b = 0; b < 256; ++b) {
    if (id_of_byte[b] < 0) return concat("no id is the single byte ", b);
  }
  MergeTable::Scratch scratch;
  std::vector<std::int32_t> symbols;
  for (std::size_t id = 0; id < content.tokens.size(); ++id) {
    const std::string& token = content.tokens[id];
    const auto merged = static_cast<std::int32_t>(id);
    if (token.size() == 1 || merged == content.end_of_text) continue;
    symbols.clear();
    for (const char c : token) symbols.push_back(id_of_byte[static_cast<unsigned char>(c)]);
    merges.apply(symbols, scratch);
    if (symbols.size() != 2) {
      return concat("id ", id,
                    " is not a merge of two lower ids, so merges do not follow from ids");
    }
    merges.add({symbols[0], symbols[1], merged});
  }
  return "";
}

}  // namespace

std::unique_ptr<Tokenizer> load_llmc_tokenizer(const fs::path& path) {
  Content content = read_content(path);
  if (is_byte_level(content)) return make_byte_tokenizer();
  MergeTable merges;
  std::string reason = derive_merges(merges, content);
  if (!reason.empty()) reason = concat("in ", path.string(), ", ", reason);
  return std::make_unique<BpeTokenizer>(std::move(content.tokens), std::move(merges),
                                        content.end_of_text, std::move(reason));
}

void save_llmc_tokenizer(const Tokenizer& tokenizer, const fs::path& path) {
  FileWriter writer(path);
  Header header{kMagic, kVersion, static_cast<std::uint32_t>(tokenizer.vocab_size()),
                static_cast<std::uint32_t>(tokenizer.end_of_text())};
  writer.write_value(header);
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view token = tokenizer.token_bytes(id);
    if (token.empty() || token.size() > kLongestToken) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected tokens of 1 to ",
           kLongestToken, " bytes, got ", token.size(), " for id ", id);
    }
    writer.write_value(static_cast<std::uint8_t>(token.size()));
    writer.write(token);
  }
  writer.commit();
}

}  // namespace llmc
