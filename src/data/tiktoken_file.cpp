// Rank files of tiktoken: a line for each token, its bytes in base64, a space, and its rank, which
// is its id.
#include <algorithm>
#include <array>
#include <charconv>

#include "data/bpe_tokenizer.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::int32_t kGpt2Ranks = 50256;
constexpr std::int32_t kLlama3Ranks = 128000;
constexpr int kLlama3Special = 256;

/// Nothing in `bytes` and false if the text is no base64 with its padding.
bool decode_base64(std::string_view text, std::string& bytes) {
  static const std::array<std::int8_t, 256> value_of = [] {
    std::array<std::int8_t, 256> values{};
    values.fill(-1);
    for (std::size_t i = 0; i < kDigits.size(); ++i) {
      values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
    }
    return values;
  }();
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool padded = i >= text.size() - padding;
    const std::int8_t value = padded ? 0 : value_of[static_cast<unsigned char>(text[i])];
    if (value < 0) return false;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(bits >> shift & 0xFF);
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return true;
}

std::string encode_base64(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (const int shift : {18, 12, 6, 0}) text += kDigits[bits >> shift & 0x3F];
    const std::size_t missing = at + 3 > bytes.size() ? at + 3 - bytes.size() : 0;
    std::fill(text.end() - static_cast<std::ptrdiff_t>(missing), text.end(), '=');
  }
  return text;
}

/// A line's token and rank; false if it is no such line.
bool parse_line(std::string_view line, std::string& token, std::int64_t& rank) {
  const std::size_t space = line.find(' ');
  if (space == line.npos || !decode_base64(line.substr(0, space), token)) return false;
  const char* const end = line.data() + line.size();
  const auto parsed = std::from_chars(line.data() + space + 1, end, rank);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

void add_special(BpeModel& model, std::string_view name) {
  model.special.push_back(model.tokens.size());
  model.tokens.push_back(name);
}

/// Llama 3's, whose text begins with <|begin_of_text|>.
void add_llama3_special(BpeModel& model) {
  int reserved = 0;
  for (int i = 0; i < kLlama3Special; ++i) {
    const std::string_view name = i == 0   ? "<|begin_of_text|>"
                                  : i == 1 ? "<|end_of_text|>"
                                  : i == 6 ? "<|start_header_id|>"
                                  : i == 7 ? "<|end_header_id|>"
                                  : i == 9 ? "<|eot_id|>"
                                           : "";
    add_special(model, name.empty() ? concat("<|reserved_special_token_", reserved++, "|>")
                                    : std::string(name));
  }
  model.begin_of_text = model.special[0];
  model.end_of_text = model.special[1];
}

}  // namespace

bool is_tiktoken_file(const fs::path& path) {
  FileReader reader(path);
  std::string start(512, '\0');
  start.resize(reader.read_some(start.data(), start.size()));
  std::string token;
  std::int64_t rank = 0;
  std::string_view line = std::string_view(start).substr(0, start.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return parse_line(line, token, rank);
}

BpeModel read_tiktoken_file(const fs::path& path) {
  const std::string text = read_text(path);
  std::vector<std::string> tokens;
  std::int64_t line_number = 0;
  const std::int64_t lines = std::count(text.begin(), text.end(), '\n') + 1;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    std::string token;
    std::int64_t rank = 0;
    if (!parse_line(line, token, rank)) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ", line ", line_number,
           ": expected a token in base64, a space and its rank, got '", line.substr(0, 80), "'");
    }
    if (rank < 0 || rank >= lines) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ", line ", line_number,
           ": expected a rank below the number of lines, ", lines, ", got ", rank);
    }
    const auto place = static_cast<std::size_t>(rank);
    if (place >= tokens.size()) tokens.resize(place + 1);
    if (!tokens[place].empty()) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ", line ", line_number,
           ": expected each rank once, got ", rank, " again");
    }
    tokens[place] = std::move(token);
  }
  BpeModel model;
  TokenIndex index(tokens.size());
  for (const std::string& token : tokens) {
    const std::int32_t id = model.tokens.size();
    if (token.empty()) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected the ranks 0 to ",
           tokens.size() - 1, ", got no ", id, "; is the file truncated?");
    }
    model.tokens.push_back(token);
    if (!index.add(model.tokens, id)) {
      fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected each token once, got that ",
           "of rank ", index.find(model.tokens, token), " again at ", id);
    }
  }
  std::array<std::int32_t, 256> id_of_byte;
  if (const std::string wrong = find_bytes(model, id_of_byte); !wrong.empty()) {
    fail(ErrorKind::kInput, "tokenizer", path.string(),
         ": expected one rank for every byte, got a file where ", wrong);
  }
  return model;
}

void add_merges_by_rank(BpeModel& model) {
  TokenIndex index(static_cast<std::size_t>(model.tokens.size()));
  for (std::int32_t id = 0; id < model.tokens.size(); ++id) index.add(model.tokens, id);
  for (std::int32_t id = 0; id < model.tokens.size(); ++id) {
    const std::string_view token = model.tokens[id];
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const std::int32_t left = index.find(model.tokens, token.substr(0, cut));
      if (left == TokenIndex::kNone) continue;
      const std::int32_t right = index.find(model.tokens, token.substr(cut));
      if (right == TokenIndex::kNone) continue;
      model.merges.add({left, right, id}, static_cast<std::uint32_t>(id));
    }
  }
}

std::unique_ptr<Tokenizer> load_tiktoken(const fs::path& path) {
  BpeModel model = read_tiktoken_file(path);
  if (model.tokens.size() == kLlama3Ranks) {
    model.pattern = SplitPattern::kLlama3;
    model.whole_pieces = true;
    add_merges_by_rank(model);
    add_llama3_special(model);
    return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kRanks);
  }
  if (model.tokens.size() != kGpt2Ranks) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected ", kGpt2Ranks,
         " ranks (GPT-2) or ", kLlama3Ranks, " (Llama 3), got ", model.tokens.size(),
         "; a rank file does not say how its tokenizer splits text");
  }
  add_special(model, kEndOfText);
  model.begin_of_text = model.end_of_text = model.special[0];
  if (const std::string wrong = derive_merges(model); !wrong.empty()) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected GPT-2's ranks, but ", wrong);
  }
  return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kJson);
}

void save_tiktoken_file(const fs::path& path, const BpeModel& model) {
  std::string text;
  for (std::int32_t id = 0; id < model.special.front(); ++id) {
    text += concat(encode_base64(model.tokens[id]), ' ', id, '\n');
  }
  write_text(path, text);
}

}  // namespace llmc
