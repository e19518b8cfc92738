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

BpeModel read_model(const fs::path& path) {
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
  BpeModel model;
  model.begin_of_text = model.end_of_text = static_cast<std::int32_t>(end_of_text);
  model.special = {model.end_of_text};
  for (std::uint32_t id = 0; id < count; ++id) {
    std::string token(reader.read_value<std::uint8_t>(), '\0');
    if (token.empty()) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected 1 to 255 bytes for token ",
           id, ", got 0");
    }
    reader.read(token.data(), token.size());
    model.tokens.push_back(token);
  }
  if (reader.position() != reader.size()) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected ", reader.position(),
         " bytes for its ", count, " tokens, got ", reader.size(), "; the file is too long");
  }
  return model;
}

bool is_byte_level(const BpeModel& model) {
  if (model.tokens.size() != 257 || model.end_of_text != 256) return false;
  for (std::int32_t b = 0; b < 256; ++b) {
    if (model.tokens[b] != std::string(1, static_cast<char>(b))) return false;
  }
  return true;
}

}  // namespace

// The parts of a token are what the merges of lower ids leave of its bytes, and these must be two.
std::string derive_merges(BpeModel& model) {
  std::array<std::int32_t, 256> id_of_byte;
  if (std::string wrong = find_bytes(model, id_of_byte); !wrong.empty()) return wrong;
  MergeTable::Scratch scratch;
  std::vector<std::int32_t> symbols;
  for (std::int32_t id = 0; id < model.tokens.size(); ++id) {
    const std::string_view token = model.tokens[id];
    if (token.size() == 1 || id == model.end_of_text) continue;
    symbols.clear();
    for (const char c : token) symbols.push_back(id_of_byte[static_cast<unsigned char>(c)]);
    model.merges.apply(symbols, scratch);
    if (symbols.size() != 2) {
      return concat("id ", id,
                    " is not a merge of two lower ids, so merges do not follow from ids");
    }
    model.merges.add({symbols[0], symbols[1], id});
  }
  return "";
}

std::unique_ptr<Tokenizer> load_llmc_tokenizer(const fs::path& path) {
  BpeModel model = read_model(path);
  if (is_byte_level(model)) return make_byte_tokenizer();
  const std::string wrong = derive_merges(model);
  if (wrong.empty()) {
    return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kJson);
  }
  model.decode_only = concat("in ", path.string(), ", ", wrong);
  return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kLlmc);
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
