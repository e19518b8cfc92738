#include "data/text_split.h"

#include <array>

#include "data/unicode.h"

namespace llmc {
namespace {

struct Char {
  CharClass kind;
  std::size_t bytes;
};

constexpr bool is_ascii_letter(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

constexpr std::array<CharClass, 128> kAscii = [] {
  std::array<CharClass, 128> classes{};
  for (std::size_t c = 0; c < 128; ++c) {
    const bool space = (c >= 0x9 && c <= 0xD) || c == ' ';
    const bool number = c >= '0' && c <= '9';
    classes[c] = is_ascii_letter(static_cast<unsigned char>(c)) ? CharClass::kLetter
                 : number                                       ? CharClass::kNumber
                 : space                                        ? CharClass::kSpace
                                                                : CharClass::kOther;
  }
  return classes;
}();

inline Char char_at(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < kAscii.size()) return {kAscii[byte], 1};
  const Utf8 utf8 = decode_utf8(text, at);
  if (utf8.kind != Utf8::Kind::kValid) return {CharClass::kOther, 1};
  return {class_of(utf8.code), utf8.bytes};
}

/// The end of the run of at most `most` characters of a class that begins at text[at].
inline std::size_t end_of_run(std::string_view text, std::size_t at, CharClass kind,
                              std::size_t most = std::string_view::npos) {
  for (; at < text.size() && most > 0; --most) {
    const Char c = char_at(text, at);
    if (c.kind != kind) break;
    at += c.bytes;
  }
  return at;
}

bool is_newline(char c) {
  return c == '\r' || c == '\n';
}

/// \s+(?!\S)|\s+: a run of spaces leaves its last one to what follows, unless it is alone or
/// nothing follows.
std::size_t end_of_spaces(std::string_view text, std::size_t begin) {
  std::size_t at = begin;
  std::size_t last = begin;
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (c.kind != CharClass::kSpace) break;
    last = at;
    at += c.bytes;
  }
  return at == text.size() || last == begin ? at : last;
}

/// Bytes of the contraction that follows the apostrophe at text[begin], with it: 's 't 'm 'd 're
/// 've 'll; 0 if there is none.
std::size_t contraction_bytes(std::string_view text, std::size_t begin) {
  const std::string_view rest = text.substr(begin + 1, 2);
  if (rest.empty()) return 0;
  if (rest[0] == 's' || rest[0] == 't' || rest[0] == 'm' || rest[0] == 'd') return 2;
  return rest == "re" || rest == "ve" || rest == "ll" ? 3 : 0;
}

/// The same without regard to case, in which U+017F, the long s, is an s.
std::size_t contraction_bytes_any_case(std::string_view text, std::size_t begin) {
  if (text.substr(begin + 1, 2) == "\u017f") return 3;
  char lower[3] = {'\''};
  std::size_t count = 1;
  for (; count < 3 && begin + count < text.size(); ++count) {
    const char c = text[begin + count];
    lower[count] = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return contraction_bytes({lower, count}, 0);
}

std::size_t gpt2_piece_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    if (const std::size_t bytes = contraction_bytes(text, begin)) return begin + bytes;
  }
  std::size_t start = begin;
  if (text[begin] == ' ' && begin + 1 < text.size()) start = begin + 1;
  const Char first = char_at(text, start);
  if (first.kind == CharClass::kSpace) return end_of_spaces(text, begin);
  return end_of_run(text, start + first.bytes, first.kind);
}

/// \s*[\r\n]+|\s+(?!\S)|\s+: a run of spaces up to its last newline, if it has one.
std::size_t end_of_lines(std::string_view text, std::size_t begin) {
  const std::size_t end = end_of_run(text, begin, CharClass::kSpace);
  for (std::size_t at = end; at > begin; --at) {
    if (is_newline(text[at - 1])) return at;
  }
  return end_of_spaces(text, begin);
}

std::size_t llama3_piece_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    if (const std::size_t bytes = contraction_bytes_any_case(text, begin)) return begin + bytes;
  }
  const Char first = char_at(text, begin);
  const std::size_t second = begin + first.bytes;
  if (first.kind == CharClass::kLetter) return end_of_run(text, second, CharClass::kLetter);
  if (first.kind == CharClass::kNumber) return end_of_run(text, begin, CharClass::kNumber, 3);
  if (!is_newline(text[begin])) {
    const std::size_t word_end = end_of_run(text, second, CharClass::kLetter);
    if (word_end > second) return word_end;
  }
  std::size_t end = second;
  if (first.kind == CharClass::kOther || text[begin] == ' ') {
    end = end_of_run(text, second, CharClass::kOther);
  }
  if (first.kind == CharClass::kSpace && end == second) return end_of_lines(text, begin);
  while (end < text.size() && is_newline(text[end])) ++end;
  return end;
}

}  // namespace

std::string_view regular_expression(SplitPattern pattern) {
  if (pattern == SplitPattern::kGpt2) {
    return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  }
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
         R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::size_t piece_end(SplitPattern pattern, std::string_view text, std::size_t begin) {
  return pattern == SplitPattern::kGpt2 ? gpt2_piece_end(text, begin)
                                        : llama3_piece_end(text, begin);
}

}  // namespace llmc
