#include "llmc/data/choices.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_text.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

using Header = std::array<std::int32_t, 256>;
constexpr std::int32_t kMagic = 20240522;
constexpr std::int32_t kVersion = 1;
constexpr std::uint16_t kExampleMark = 65535;
constexpr std::size_t kEndings = 4;

struct Line {
  const fs::path& path;
  std::int64_t number;

  template <class... Parts>
  [[noreturn]] void fail_input(const Parts&... parts) const {
    fail(ErrorKind::kInput, "choices", path.string(), ": line ", number, ": ", parts...);
  }
};

class ExampleEncoder {
 public:
  ExampleEncoder(const Tokenizer& tokenizer, const Line& line)
      : tokenizer_(tokenizer), line_(line) {}

  /// The example as the file has it.
  std::vector<std::uint16_t> run(std::string_view text, std::int64_t index) {
    const Json json = parse_json(text);
    if (!json.is_object()) line_.fail_input("expected a JSON object, got something else");
    const Json endings = json.value("endings", Json());
    if (!endings.is_array() || endings.size() != kEndings) {
      line_.fail_input("expected ", kEndings, " texts under 'endings', got ",
                       endings.is_array() ? std::to_string(endings.size()) : "something else");
    }
    const Json label = json.value("label", Json());
    if (!label.is_number_unsigned() || label.get<std::uint64_t>() >= kEndings) {
      line_.fail_input("expected the number of an ending, 0 to ", kEndings - 1,
                       ", under 'label', got ", label.is_null() ? "none" : label.dump());
    }
    words_ = {kExampleMark, 0, static_cast<std::uint16_t>(index), label.get<std::uint16_t>(),
              static_cast<std::uint16_t>(kEndings)};
    add(text_of(json.value("ctx", Json()), "ctx"));
    for (const Json& ending : endings) add(" " + text_of(ending, "endings"));
    const std::size_t bytes = words_.size() * sizeof(std::uint16_t);
    words_[1] = narrow(static_cast<std::int64_t>(bytes), "bytes");
    return std::move(words_);
  }

 private:
  std::string text_of(const Json& json, std::string_view key) const {
    if (!json.is_string()) line_.fail_input("expected a text under '", key, "'");
    return json.get<std::string>();
  }

  std::uint16_t narrow(std::int64_t number, std::string_view what) const {
    if (number > kExampleMark) {
      line_.fail_input("expected at most ", kExampleMark, " ", what, ", got ", number);
    }
    return static_cast<std::uint16_t>(number);
  }

  void add(const std::string& text) {
    const auto ids = tokenizer_.encode(text);
    if (ids.empty()) line_.fail_input("expected a text under 'ctx', got an empty one");
    words_.push_back(narrow(static_cast<std::int64_t>(ids.size()), "tokens in a text"));
    for (const std::int32_t id : ids) {
      if (id >= kExampleMark) {
        line_.fail_input("expected token ids below ", kExampleMark, ", got ", id,
                         "; the format has no room for this tokenizer");
      }
      words_.push_back(static_cast<std::uint16_t>(id));
    }
  }

  const Tokenizer& tokenizer_;
  const Line& line_;
  std::vector<std::uint16_t> words_;
};

}  // namespace

std::int64_t write_choices(const fs::path& to, const fs::path& json_lines,
                           const Tokenizer& tokenizer) {
  const std::string text = read_text(json_lines);
  FileWriter writer(to);
  writer.write_value(Header{});
  std::int64_t examples = 0;
  std::size_t longest = 0;
  Line line{json_lines, 1};
  for (std::string_view rest = text; !rest.empty(); ++line.number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view json = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (json.find_first_not_of(" \t\r") == json.npos) continue;
    if (examples == kExampleMark) {
      line.fail_input("expected at most ", kExampleMark, " examples, got more");
    }
    const auto words = ExampleEncoder(tokenizer, line).run(json, examples++);
    const std::size_t bytes = words.size() * sizeof(std::uint16_t);
    writer.write(words.data(), bytes);
    longest = std::max(longest, bytes);
  }
  if (examples == 0) {
    fail(ErrorKind::kInput, "choices", json_lines.string(), ": expected examples, got none");
  }
  Header header{};
  header[0] = kMagic;
  header[1] = kVersion;
  header[2] = static_cast<std::int32_t>(examples);
  header[3] = static_cast<std::int32_t>(longest);
  writer.seek(0);
  writer.write_value(header);
  writer.commit();
  return examples;
}

}  // namespace llmc
