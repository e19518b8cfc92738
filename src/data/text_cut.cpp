#include "data/text_cut.h"

#include <algorithm>
#include <optional>

#include "data/unicode.h"

namespace llmc {
namespace {

constexpr std::size_t kLongestCharacter = 4;  // bytes

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

/// The class of the whole character at text[at]; nothing if it is none.
std::optional<CharClass> class_at(std::string_view text, std::size_t at) {
  const Utf8 utf8 = decode_utf8(text, at);
  if (utf8.kind != Utf8::Kind::kValid) return std::nullopt;
  return class_of(utf8.code);
}

}  // namespace

std::size_t last_safe_cut(std::string_view text) {
  std::optional<CharClass> next;  // of the character that begins at `end`
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && end - begin < kLongestCharacter && is_continuation(text[begin])) --begin;
    auto here = class_at(text.substr(0, end), begin);
    if (here && decode_utf8(text, begin).bytes != end - begin) here = std::nullopt;
    if (next && here) {
      const bool after_letter = *here == CharClass::kLetter && *next != CharClass::kLetter;
      const bool after_number = *here == CharClass::kNumber && *next == CharClass::kSpace;
      if (after_letter || after_number) return end;
    }
    next = here;
    end = here ? begin : end - 1;
  }
  return 0;
}

std::size_t last_character_border(std::string_view text) {
  for (std::size_t back = 1; back <= std::min(text.size(), kLongestCharacter - 1); ++back) {
    const std::size_t at = text.size() - back;
    if (decode_utf8(text, at).kind == Utf8::Kind::kIncomplete) return at;
    if (!is_continuation(text[at])) break;
  }
  return text.size();
}

}  // namespace llmc
