// GPT-2's vocabulary and merges files, which write each byte as a printable character.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "data/bpe_tokenizer.h"
#include "data/unicode.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using TokenIds = std::unordered_map<std::string, std::int32_t>;

/// The code point that stands for each byte: itself if Latin-1 prints it, else one from U+0100 on.
const std::array<std::uint32_t, 256>& printable_bytes() {
  static const std::array<std::uint32_t, 256> codes = [] {
    std::array<std::uint32_t, 256> table{};
    std::uint32_t next = 0x100;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      table[b] = prints ? b : next++;
    }
    return table;
  }();
  return codes;
}

std::string to_printable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(printable_bytes()[static_cast<unsigned char>(c)], text);
  return text;
}

/// The bytes that a printable text stands for; nothing if a character stands for none.
std::optional<std::string> from_printable(std::string_view text) {
  static const std::array<std::int16_t, 0x200> byte_of = [] {
    std::array<std::int16_t, 0x200> table{};
    table.fill(-1);
    for (std::size_t b = 0; b < 256; ++b)
      table[printable_bytes()[b]] = static_cast<std::int16_t>(b);
    return table;
  }();
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8 utf8 = decode_utf8(text, at);
    if (utf8.kind != Utf8::Kind::kValid || utf8.code >= byte_of.size()) return std::nullopt;
    const std::int16_t byte = byte_of[utf8.code];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    at += utf8.bytes;
  }
  return bytes;
}

struct Vocabulary {
  std::vector<std::string> tokens;  // by id
  TokenIds ids;
};

Vocabulary read_vocabulary(const fs::path& path) {
  const auto json = nlohmann::json::parse(read_text(path), nullptr, false);
  if (!json.is_object()) {
    fail(ErrorKind::kInput, "tokenizer", path.string(),
         ": expected a JSON object that maps tokens to ids, got ",
         json.is_discarded() ? "no valid JSON" : json.type_name());
  }
  Vocabulary vocabulary;
  std::vector<bool> taken(json.size());
  vocabulary.tokens.resize(json.size());
  for (const auto& [printed, value] : json.items()) {
    const auto bytes = from_printable(printed);
    if (!bytes || bytes->empty()) {
      fail(ErrorKind::kInput, "tokenizer", path.string(),
           ": expected tokens written in GPT-2's byte characters, got '", printed, "'");
    }
    const bool usable = value.is_number_unsigned() && value.get<std::uint64_t>() < json.size() &&
                        !taken[value.get<std::size_t>()];
    if (!usable) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected the ids 0 to ",
           json.size() - 1, ", each once, got ", value.dump(), " for the token '", printed, "'");
    }
    const auto id = value.get<std::size_t>();
    taken[id] = true;
    vocabulary.tokens[id] = *bytes;
    vocabulary.ids.emplace(*bytes, static_cast<std::int32_t>(id));
  }
  return vocabulary;
}

std::int32_t required_id(const TokenIds& ids, const std::string& token, const fs::path& path) {
  const auto found = ids.find(token);
  if (found == ids.end()) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected the token '",
         to_printable(token), "' in the vocabulary, got none");
  }
  return found->second;
}

MergeTable read_merges(const fs::path& path, const TokenIds& ids) {
  const std::string text = read_text(path);
  MergeTable merges;
  std::int64_t line_number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    const auto left = from_printable(line.substr(0, space));
    const auto right = space == line.npos ? std::nullopt : from_printable(line.substr(space + 1));
    if (!left || !right || left->empty() || right->empty()) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ", line ", line_number,
           ": expected two tokens with one space between them, got '", line.substr(0, 80), "'");
    }
    const bool added = merges.add({required_id(ids, *left, path), required_id(ids, *right, path),
                                   required_id(ids, *left + *right, path)});
    if (!added) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ", line ", line_number,
           ": expected each pair once, got '", line.substr(0, 80), "' again");
    }
  }
  return merges;
}

}  // namespace

std::unique_ptr<Tokenizer> load_gpt2_tokenizer(const fs::path& vocab_json,
                                               const fs::path& merges_txt) {
  Vocabulary vocabulary = read_vocabulary(vocab_json);
  for (int b = 0; b < 256; ++b) {
    required_id(vocabulary.ids, std::string(1, static_cast<char>(b)), vocab_json);
  }
  const std::int32_t end_of_text = required_id(vocabulary.ids, std::string(kEndOfText), vocab_json);
  MergeTable merges = read_merges(merges_txt, vocabulary.ids);
  for (const MergeTable::Merge& merge : merges.merges()) {
    if (merge.merged == end_of_text) {
      fail(ErrorKind::kInput, "tokenizer", merges_txt.string(), ": expected no merge to yield ",
           kEndOfText);
    }
  }
  return std::make_unique<BpeTokenizer>(std::move(vocabulary.tokens), std::move(merges),
                                        end_of_text);
}

void save_gpt2_files(const fs::path& folder, const std::vector<std::string>& tokens,
                     const MergeTable& merges, std::int32_t end_of_text) {
  std::string vocab = "{";
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const bool special = static_cast<std::int32_t>(id) == end_of_text;
    const std::string printed = special ? std::string(kEndOfText) : to_printable(tokens[id]);
    vocab += concat(id == 0 ? "" : ", ", nlohmann::json(printed).dump(), ": ", id);
  }
  vocab += "}\n";
  std::string lines = "#version: 0.2\n";
  for (const MergeTable::Merge& merge : merges.merges()) {
    lines += to_printable(tokens[static_cast<std::size_t>(merge.left)]) + ' ' +
             to_printable(tokens[static_cast<std::size_t>(merge.right)]) + '\n';
  }
  write_text(folder / "merges.txt", lines);
  write_text(folder / "vocab.json", vocab);
}

}  // namespace llmc
