#include "data/gpt2_split.h"

#include "data/unicode.h"

namespace llmc {
namespace {

struct Char {
  CharClass kind;
  std::size_t bytes;
};

Char char_at(std::string_view text, std::size_t at) {
  const Utf8 utf8 = decode_utf8(text, at);
  if (utf8.kind != Utf8::Kind::kValid) return {CharClass::kOther, 1};
  return {class_of(utf8.code), utf8.bytes};
}

/// Bytes of the contraction at text[begin]: 's 't 'm 'd 're 've 'll; 0 if there is none.
std::size_t contraction_bytes(std::string_view text, std::size_t begin) {
  if (text[begin] != '\'' || begin + 1 == text.size()) return 0;
  const char first = text[begin + 1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const std::string_view pair = text.substr(begin + 1, 2);
  return pair == "re" || pair == "ve" || pair == "ll" ? 3 : 0;
}

std::size_t end_of_run(std::string_view text, std::size_t at, CharClass kind) {
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (c.kind != kind) break;
    at += c.bytes;
  }
  return at;
}

/// A run of spaces leaves its last one to what follows, unless it is alone or nothing follows.
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

}  // namespace

std::size_t gpt2_piece_end(std::string_view text, std::size_t begin) {
  if (const std::size_t bytes = contraction_bytes(text, begin)) return begin + bytes;
  std::size_t start = begin;
  if (text[begin] == ' ' && begin + 1 < text.size()) start = begin + 1;
  Char first = char_at(text, start);
  if (first.kind == CharClass::kSpace) return end_of_spaces(text, begin);
  return end_of_run(text, start, first.kind);
}

}  // namespace llmc
