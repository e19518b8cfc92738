#include "llmc/data/choices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/json_text.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int32_t kMagic = 20240522;
constexpr std::int32_t kVersion = 1;
constexpr std::uint16_t kExampleMark = 65535;

/// Code points; of bytes that are no UTF-8, those that cannot continue one.
std::int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; });
}

/// Of an ending's text, without the space in front; 0 where the tokenizer does not know a token.
std::int64_t characters_of(const std::vector<std::int32_t>& tokens, const Tokenizer& tokenizer) {
  for (const std::int32_t token : tokens) {
    if (token >= tokenizer.vocab_size()) return 0;
  }
  const std::string text = tokenizer.decode(tokens);
  return characters_of(text.starts_with(' ') ? std::string_view(text).substr(1)
                                             : std::string_view(text));
}

// The binary file.

/// The 16-bit words after the header.
class Words {
 public:
  Words(const fs::path& path, std::vector<std::uint16_t> words)
      : path_(path), words_(std::move(words)) {}

  std::size_t position() const { return next_; }
  bool at_end() const { return next_ == words_.size(); }
  std::int64_t word(std::int64_t example, const char* what) {
    if (at_end()) wrong(example, concat("a whole ", what), "the end of the file");
    return words_[next_++];
  }
  std::vector<std::int32_t> tokens(std::int64_t example, const char* what) {
    const std::int64_t count = word(example, what);
    if (count < 1) wrong(example, concat("at least one token of the ", what), "none");
    std::vector<std::int32_t> out(static_cast<std::size_t>(count));
    for (std::int32_t& token : out) token = static_cast<std::int32_t>(word(example, what));
    return out;
  }
  template <class Expected, class Got>
  [[noreturn]] void wrong(std::int64_t example, const Expected& expected, const Got& got) const {
    fail(ErrorKind::kInput, "choices", path_.string(), ", example ", example, ": expected ",
         expected, ", got ", got);
  }

 private:
  const fs::path& path_;
  std::vector<std::uint16_t> words_;
  std::size_t next_ = 0;
};

ChoiceExample read_example(Words& words, std::int64_t number, const Tokenizer* tokenizer) {
  const std::size_t begin = words.position();
  const std::int64_t mark = words.word(number, "example");
  if (mark != kExampleMark) {
    words.wrong(number, concat("the mark ", kExampleMark, " where it begins"), mark);
  }
  const std::int64_t bytes = words.word(number, "example");
  const std::int64_t index = words.word(number, "example");
  if (index != number - 1) words.wrong(number, concat("the index ", number - 1), index);
  ChoiceExample example;
  example.label = words.word(number, "example");
  const std::int64_t endings = words.word(number, "example");
  if (endings < 1) words.wrong(number, "at least one ending", endings);
  if (example.label >= endings) {
    words.wrong(number, concat("a label below its ", endings, " endings"), example.label);
  }
  example.context = words.tokens(number, "context");
  for (std::int64_t i = 0; i < endings; ++i) {
    ChoiceEnding ending{words.tokens(number, "ending")};
    if (tokenizer) ending.characters = characters_of(ending.tokens, *tokenizer);
    example.endings.push_back(std::move(ending));
  }
  const auto read = static_cast<std::int64_t>(2 * (words.position() - begin));
  if (read != bytes) words.wrong(number, concat(bytes, " bytes, as it says"), read);
  return example;
}

std::vector<ChoiceExample> read_binary(const fs::path& path, FileReader& reader,
                                       const Tokenizer* tokenizer) {
  reader.seek(0);
  const auto header = reader.read_value<std::array<std::int32_t, 256>>();
  if (header[1] != kVersion) {
    fail(ErrorKind::kInput, "choices", path.string(), ": expected version ", kVersion, ", got ",
         header[1]);
  }
  const std::uint64_t bytes = reader.size() - sizeof header;
  if (bytes % 2 != 0) {
    fail(ErrorKind::kInput, "choices", path.string(), ": expected whole 16-bit words, got ", bytes,
         " bytes after the header");
  }
  std::vector<std::uint16_t> data(bytes / 2);
  reader.read(data.data(), bytes);
  Words words(path, std::move(data));
  std::vector<ChoiceExample> examples;
  for (std::int64_t number = 1; number <= header[2]; ++number) {
    examples.push_back(read_example(words, number, tokenizer));
  }
  if (!words.at_end()) {
    fail(ErrorKind::kInput, "choices", path.string(), ": expected the file to end after its ",
         header[2], " examples, got more");
  }
  return examples;
}

// JSON Lines.

struct Line {
  const fs::path& path;
  std::int64_t number;
  Json json;

  template <class... Parts>
  [[noreturn]] void wrong(const Parts&... parts) const {
    fail(ErrorKind::kInput, "choices", path.string(), ", line ", number, ": expected ", parts...);
  }
  const Json& field(const char* key, const char* what) const {
    const auto found = json.find(key);
    if (found == json.end()) wrong(what, " under \"", key, "\", got no such field");
    return *found;
  }
  const std::string& text(const Json& value, const char* key) const {
    if (!value.is_string()) wrong("a text under \"", key, "\", got ", value.type_name());
    return value.get_ref<const std::string&>();
  }
  /// Some sets have numbers, some texts of digits.
  std::int64_t label(std::int64_t endings) const {
    const Json& value = field("label", "the number of the right ending");
    std::int64_t label = -1;
    if (value.is_number_integer()) {
      label = value.is_number_unsigned() && value.get<std::uint64_t>() > 0x7fffffff
                  ? endings
                  : value.get<std::int64_t>();
    } else if (value.is_string()) {
      const std::string& digits = value.get_ref<const std::string&>();
      const char* const end = digits.data() + digits.size();
      if (std::from_chars(digits.data(), end, label).ptr != end) label = -1;
    }
    if (label < 0 || label >= endings) {
      wrong("a label from 0 to ", endings - 1, ", got ", value.dump());
    }
    return label;
  }
};

ChoiceExample read_line(const fs::path& path, std::int64_t number, std::string_view text,
                        const Tokenizer& tokenizer) {
  const Line line{path, number, parse_json(text)};
  if (line.json.is_discarded()) line.wrong("a JSON object, got text that is none");
  if (!line.json.is_object()) line.wrong("a JSON object, got ", line.json.type_name());
  std::string context = line.text(line.field("ctx", "a text"), "ctx");
  const Json& endings = line.field("endings", "a list of texts");
  if (!endings.is_array() || endings.empty()) {
    line.wrong("a list of texts under \"endings\", got ",
               endings.is_array() ? "an empty one" : endings.type_name());
  }
  ChoiceExample example;
  example.label = line.label(std::ssize(endings));

  const std::size_t words_end = context.find_last_not_of(" \t\n\r\v\f") + 1;
  const std::string space = context.substr(words_end) + ' ';
  context.resize(words_end);
  tokenizer.encode(example.context, context);
  const std::size_t shared = example.context.size();
  if (shared == 0) example.context.push_back(tokenizer.end_of_text());
  for (const Json& value : endings) {
    const std::string& ending = line.text(value, "endings");
    std::vector<std::int32_t> whole = tokenizer.encode(context + space + ending);
    if (whole.size() <= shared) {
      line.wrong("endings of at least one token, got '", ending, "'");
    }
    whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(shared));
    example.endings.push_back({std::move(whole), characters_of(ending)});
  }
  return example;
}

std::vector<ChoiceExample> read_lines(const fs::path& path, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) {
    fail(ErrorKind::kConfig, "choices", path.string(), ": expected a tokenizer for its texts, got ",
         "none; give one with --tokenizer");
  }
  const std::string text = read_text(path);
  std::vector<ChoiceExample> examples;
  std::int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    examples.push_back(read_line(path, number, line, *tokenizer));
  }
  return examples;
}

}  // namespace

std::vector<ChoiceExample> read_choices(const fs::path& path, const Tokenizer* tokenizer) {
  FileReader reader(path);
  std::int32_t magic = 0;
  if (reader.size() >= sizeof magic) magic = reader.read_value<std::int32_t>();
  std::vector<ChoiceExample> examples =
      magic == kMagic ? read_binary(path, reader, tokenizer) : read_lines(path, tokenizer);
  if (examples.empty()) {
    fail(ErrorKind::kInput, "choices", path.string(), ": expected examples, got none");
  }
  return examples;
}

void check_choices(std::span<const ChoiceExample> examples, std::int64_t vocab_size,
                   std::int64_t seq_len) {
  for (std::size_t i = 0; i < examples.size(); ++i) {
    const auto check = [&](const std::vector<std::int32_t>& tokens) {
      for (const std::int32_t token : tokens) {
        if (token >= 0 && token < vocab_size) continue;
        fail(ErrorKind::kInput, "choices", "example ", i + 1, ": expected tokens below the ",
             vocab_size, " of the model, got ", token);
      }
    };
    check(examples[i].context);
    for (const ChoiceEnding& ending : examples[i].endings) {
      check(ending.tokens);
      if (std::ssize(ending.tokens) <= seq_len) continue;
      fail(ErrorKind::kInput, "choices", "example ", i + 1, ": expected endings of at most ",
           seq_len, " tokens, the model's length, got ", ending.tokens.size());
    }
  }
}

std::uint64_t checksum_of(std::span<const ChoiceExample> examples) {
  Checksum64 checksum;
  const auto add = [&](std::int64_t number) { checksum.update(&number, sizeof number); };
  const auto add_all = [&](const std::vector<std::int32_t>& tokens) {
    add(std::ssize(tokens));
    checksum.update(tokens.data(), tokens.size() * sizeof tokens[0]);
  };
  for (const ChoiceExample& example : examples) {
    add_all(example.context);
    add(std::ssize(example.endings));
    for (const ChoiceEnding& ending : example.endings) {
      add_all(ending.tokens);
      add(ending.characters);
    }
    add(example.label);
  }
  return checksum.value();
}

}  // namespace llmc
