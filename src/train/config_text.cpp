#include <algorithm>
#include <charconv>
#include <string>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/train/train_config.h"

namespace llmc {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool is_key_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

// UTF-8 of a code point, for \u escapes.
void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

// One line of a configuration file; its errors say where it stands.
class Line {
 public:
  Line(std::string_view text, std::string where) : rest_(trimmed(text)), where_(std::move(where)) {}

  bool blank() const { return rest_.empty() || rest_[0] == '#'; }

  std::string_view take_key() {
    if (rest_[0] == '[') {
      wrong("expected key = value, got a section; configuration files are flat");
    }
    std::size_t end = 0;
    while (end < rest_.size() && is_key_char(rest_[end])) ++end;
    const std::string_view key = rest_.substr(0, end);
    const std::string_view after = trimmed(rest_.substr(end));
    if (key.empty() || after.empty() || after[0] != '=') {
      wrong(concat("expected key = value, got '", rest_.substr(0, 60), "'"));
    }
    rest_ = trimmed(after.substr(1));
    return key;
  }

  // The value as set_option takes it. Text stands in quotes, everything else does not.
  std::string take_value(const ConfigOption& option) {
    const bool quoted = !rest_.empty() && (rest_[0] == '"' || rest_[0] == '\'');
    const bool text = std::holds_alternative<std::string TrainConfig::*>(option.member);
    if (text && !quoted) wrong(concat(option.key, ": expected text in quotes, got '", rest_, "'"));
    if (!text && quoted) {
      wrong(concat(option.key, ": expected ", type_name(option), " without quotes, got ", rest_));
    }
    std::string value = quoted ? take_quoted(option) : take_bare();
    if (!blank()) wrong(concat(option.key, ": expected the end of the line, got '", rest_, "'"));
    return value;
  }

  [[noreturn]] void wrong(std::string_view what) const {
    fail(ErrorKind::kConfig, "config", where_, ": ", what);
  }

 private:
  std::string take_bare() {
    const std::string value(trimmed(rest_.substr(0, rest_.find('#'))));
    rest_ = {};
    return value;
  }

  std::string take_quoted(const ConfigOption& option) {
    const char quote = rest_[0];
    std::string value;
    for (std::size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == quote) {
        rest_ = trimmed(rest_.substr(i + 1));
        return value;
      }
      if (rest_[i] == '\\' && quote == '"') {
        i = take_escape(value, i + 1, option);
      } else {
        value += rest_[i];
      }
    }
    wrong(concat(option.key, ": expected a closing quote, got '", rest_, "'"));
  }

  // Reads the escape whose letter stands at `at`; returns the index of its last character.
  std::size_t take_escape(std::string& value, std::size_t at, const ConfigOption& option) {
    constexpr std::string_view kLetters = "btnfr\"\\";
    constexpr std::string_view kMeanings = "\b\t\n\f\r\"\\";
    const char letter = at < rest_.size() ? rest_[at] : '\0';
    if (const auto i = kLetters.find(letter); i != std::string_view::npos) {
      value += kMeanings[i];
      return at;
    }
    std::uint32_t code = 0;
    if (letter == 'u' && at + 4 < rest_.size()) {
      const char* first = rest_.data() + at + 1;
      const auto [end, error] = std::from_chars(first, first + 4, code, 16);
      if (error == std::errc() && end == first + 4) {
        append_utf8(value, code);
        return at + 4;
      }
    }
    wrong(concat(option.key, ": expected an escape such as \\\" or \\n, got '", rest_, "'"));
  }

  std::string_view rest_;
  std::string where_;
};

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    constexpr std::string_view kMeanings = "\b\t\n\f\r\"\\";
    constexpr std::string_view kLetters = "btnfr\"\\";
    constexpr std::string_view kHex = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (const auto i = kMeanings.find(c); i != std::string_view::npos) {
      out += '\\';
      out += kLetters[i];
    } else if (byte < 0x20 || byte == 0x7f) {
      out += concat("\\u00", kHex[byte >> 4], kHex[byte & 15]);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_value(const TrainConfig& config, const ConfigOption& option) {
  const std::string text = option_text(config, option);
  if (std::holds_alternative<std::string TrainConfig::*>(option.member)) return toml_string(text);
  const bool number = std::holds_alternative<double TrainConfig::*>(option.member);
  return number && text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string page_range(const ConfigOption& option) {
  if (!option.choices.empty()) {
    std::string list;
    for (std::string_view choice : option.choices) {
      list += concat(list.empty() ? "`" : ", `", choice, "`");
    }
    return list;
  }
  std::string text = std::string(type_name(option));
  if (const std::string range = range_text(option.range); !range.empty()) text += ", " + range;
  return text;
}

}  // namespace

std::vector<ConfigSetting> parse_config(std::string_view text, std::string_view name) {
  std::vector<ConfigSetting> settings;
  TrainConfig scratch;
  if (constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
      text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string where = concat(name, ":", ++number);
    Line line(text.substr(0, end), where);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.blank()) continue;
    const std::string_view key = line.take_key();
    try {
      const ConfigOption& option = find_option(key);
      for (const ConfigSetting& earlier : settings) {
        if (earlier.option == &option)
          line.wrong(concat(option.key, ": set twice, first at ", earlier.origin));
      }
      std::string value = line.take_value(option);
      set_option(scratch, option, value);
      settings.push_back({&option, std::move(value), where});
    } catch (const Error& error) {
      const std::string_view message = error.what();
      constexpr std::string_view kModule = "[config] ";
      if (message.substr(kModule.size(), where.size()) == where) throw;
      line.wrong(message.substr(kModule.size()));
    }
  }
  return settings;
}

std::vector<ConfigSetting> read_config(const std::filesystem::path& path) {
  std::string text;
  try {
    text = read_text(path, std::uint64_t{1} << 20);
  } catch (const Error& error) {
    throw Error(ErrorKind::kConfig, "config",
                concat("cannot read the configuration: ", error.what()));
  }
  return parse_config(text, path.string());
}

std::string config_text(const TrainConfig& config) {
  std::string out;
  std::string_view group;
  for (const ConfigOption& option : config_options()) {
    if (option.on_resume == OnResume::kAction) continue;
    if (option.group != group) out += concat(group.empty() ? "# " : "\n# ", option.group, "\n");
    group = option.group;
    out += concat(option.key, " = ", toml_value(config, option), "\n");
  }
  return out;
}

std::string config_page() {
  std::string out =
      "# Configuration\n\n"
      "The options of `train`. This page is printed by `train --print-options`.\n\n"
      "An option is given on the command line as `--micro-batch 8`, or as `micro_batch = 8` in a\n"
      "flat TOML file named with `--config`; hyphens and underscores are the same in both. The\n"
      "command line beats the file. Text stands in quotes in the file. `--shuffle` alone means\n"
      "`--shuffle true`. An interval of 0 means never.\n\n"
      "A run writes the values in effect to `config.toml` in its folder, and into each "
      "checkpoint.\n"
      "A resumed run takes them from the checkpoint; an option given with another value is "
      "refused\n"
      "unless its last column says \"free\". An \"action\" says what to do now and is not "
      "recorded.\n";
  const TrainConfig defaults;
  std::string_view group;
  for (const ConfigOption& option : config_options()) {
    if (option.group != group) {
      group = option.group;
      out += concat("\n## ", group,
                    "\n\n| option | default | values | unit | meaning | on resume |\n"
                    "|---|---|---|---|---|---|\n");
    }
    constexpr std::string_view kRules[] = {"fixed", "free", "action"};
    out += concat("| `", option.key, "` | `", toml_value(defaults, option), "` | ",
                  page_range(option), " | ", option.unit, " | ", option.help, " | ",
                  kRules[static_cast<int>(option.on_resume)], " |\n");
  }
  return out;
}

}  // namespace llmc
