#include "data/json_lines.h"

#include <array>
#include <cstdint>
#include <vector>

#include "data/unicode.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;
constexpr std::size_t kMaxDepth = 1000;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// True for the bytes that end a plain stretch of a string: the quote, the backslash, controls.
constexpr auto kSpecial = [] {
  std::array<bool, 256> special{};
  for (std::size_t c = 0; c < 0x20; ++c) special[c] = true;
  special['"'] = special['\\'] = true;
  return special;
}();

/// Walks over one JSON text and notices the field's value. Nothing is stored but that value and the
/// brackets that are open. The first thing that is not as it should be ends the walk.
class JsonWalk {
 public:
  JsonWalk(std::string_view text, std::string_view field) : text_(text), field_(field) {}

  bool run(std::string& out, std::string& error) {
    const std::size_t begin = out.size();
    skip_space();
    if (next() != '{') return give_up(error, "a JSON object");
    if (!walk(out, begin)) return give_up(error, expected_);
    skip_space();
    if (at_ < text_.size()) return give_up(error, "the end of the line");
    if (!got_.empty()) {
      error = concat("expected a text under '", field_, "', got ", got_);
      return false;
    }
    return true;
  }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool give_up(std::string& error, std::string_view expected) const {
    error = concat("expected ", expected);
    if (at_ >= text_.size()) {
      error += ", got the end of the line";
    } else {
      error += concat(" at byte ", at_ + 1, ", got '", text_.substr(at_, 1), "'");
    }
    return false;
  }

  bool expect(std::string_view expected) {
    expected_ = expected;
    return false;
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' || text_[at_] == '\n')) {
      ++at_;
    }
  }

  /// The object at the position, with all that it holds. `out` is cut back to `begin` where the
  /// field comes again.
  bool walk(std::string& out, std::size_t begin) {
    std::vector<char> open;  // brackets that wait to be closed
    do {
      skip_space();
      if (!open.empty() && open.back() == '{') {
        if (!walk_key(open.size() == 1)) return false;
        skip_space();
      }
      const char c = next();
      if (is_field_) got_ = kind_of(c);
      if (c == '{' || c == '[') {
        if (open.size() == kMaxDepth) return expect("no deeper nesting");
        is_field_ = false;
        open.push_back(c);
        ++at_;
        skip_space();
        if (next() != (c == '{' ? '}' : ']')) continue;
      } else if (c == '"') {
        if (is_field_) out.resize(begin);
        if (!walk_string(is_field_ ? &out : nullptr)) return false;
      } else if (!walk_plain_value(c)) {
        return false;
      }
      is_field_ = false;
      if (!close_brackets(open)) return false;
    } while (!open.empty());
    return true;
  }

  /// After a value: brackets that close, then the comma before the next value, if any.
  bool close_brackets(std::vector<char>& open) {
    for (;;) {
      if (open.empty()) return true;
      skip_space();
      const char close = open.back() == '{' ? '}' : ']';
      if (next() == ',') {
        ++at_;
        return true;
      }
      if (next() != close) return expect(close == '}' ? "',' or '}'" : "',' or ']'");
      open.pop_back();
      ++at_;
    }
  }

  bool walk_key(bool at_top) {
    if (next() != '"') return expect("a name in quotes");
    key_.clear();
    if (!walk_string(at_top ? &key_ : nullptr)) return false;
    is_field_ = at_top && key_ == field_;
    skip_space();
    if (next() != ':') return expect("':'");
    ++at_;
    return true;
  }

  static std::string_view kind_of(char c) {
    switch (c) {
      case '"':
        return "";
      case '{':
        return "an object";
      case '[':
        return "a list";
      case 'n':
        return "null";
      case 't':
      case 'f':
        return "true or false";
      default:
        return "a number";
    }
  }

  /// A string; unescaped into `out` unless that is null.
  bool walk_string(std::string* out) {
    ++at_;
    for (;;) {
      const std::size_t begin = at_;
      while (at_ < text_.size() && !kSpecial[static_cast<unsigned char>(text_[at_])]) ++at_;
      if (out != nullptr) out->append(text_, begin, at_ - begin);
      if (at_ >= text_.size()) return expect("the end of the text in quotes");
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (c != '\\') return expect("an escaped control character");
      ++at_;
      if (!walk_escape(out)) return false;
    }
  }

  bool walk_escape(std::string* out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (next() == 'u') return walk_unicode_escape(out);
    const std::size_t name = at_ < text_.size() ? kNames.find(text_[at_]) : kNames.npos;
    if (name == kNames.npos) return expect("an escape that JSON has");
    ++at_;
    if (out != nullptr) out->push_back(kMeanings[name]);
    return true;
  }

  /// \uXXXX, or two of them for what lies beyond U+FFFF.
  bool walk_unicode_escape(std::string* out) {
    ++at_;
    std::uint32_t code = 0;
    if (!walk_hex(code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      const std::size_t second = at_;
      at_ += 2;
      std::uint32_t low = 0;
      if (!walk_hex(low)) return false;
      if (low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = second;
      }
    }
    if (code >= 0xD800 && code < 0xE000) code = kReplacement;
    if (out != nullptr) append_utf8(code, *out);
    return true;
  }

  bool walk_hex(std::uint32_t& code) {
    code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = next();
      const char lower = static_cast<char>(c | 0x20);
      std::uint32_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<std::uint32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        digit = static_cast<std::uint32_t>(lower - 'a') + 10;
      } else {
        return expect("four hexadecimal digits");
      }
      code = code * 16 + digit;
      ++at_;
    }
    return true;
  }

  /// A number, true, false or null.
  bool walk_plain_value(char c) {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (c == word[0]) {
        if (text_.substr(at_, word.size()) != word) return expect(word);
        at_ += word.size();
        return true;
      }
    }
    if (c == '-') ++at_;
    if (!is_digit(next())) return expect("a value");
    const bool zero = next() == '0';
    const std::size_t begin = at_;
    walk_digits();
    if (zero && at_ - begin > 1) return expect("a number without leading zeros");
    if (next() == '.') {
      ++at_;
      if (!walk_digits()) return expect("a digit");
    }
    if (next() == 'e' || next() == 'E') {
      ++at_;
      if (next() == '+' || next() == '-') ++at_;
      if (!walk_digits()) return expect("a digit");
    }
    return true;
  }

  bool walk_digits() {
    const std::size_t begin = at_;
    while (is_digit(next())) ++at_;
    return at_ > begin;
  }

  std::string_view text_;
  std::string_view field_;
  std::size_t at_ = 0;
  std::string key_;
  bool is_field_ = false;             // the value that comes next is the field's
  std::string_view got_ = "nothing";  // what the field is; empty: a text
  std::string_view expected_;
};

}  // namespace

bool extract_json_text(std::string& out, std::string& error, std::string_view line,
                       std::string_view field) {
  return JsonWalk(line, field).run(out, error);
}

}  // namespace llmc
