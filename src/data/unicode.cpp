#include "data/unicode.h"

#include <algorithm>
#include <span>
#include <vector>

#include "data/unicode_tables.h"

namespace llmc {
namespace {

bool within(std::span<const CodePointRange> ranges, std::uint32_t code) {
  const auto range = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const CodePointRange& r) { return r.last < code; });
  return range != ranges.end() && range->first <= code;
}

bool is_space(std::uint32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

CharClass look_up(std::uint32_t code) {
  if (is_space(code)) return CharClass::kSpace;
  if (within({kLetterRanges, kLetterRangeCount}, code)) return CharClass::kLetter;
  if (within({kNumberRanges, kNumberRangeCount}, code)) return CharClass::kNumber;
  return CharClass::kOther;
}

}  // namespace

Utf8 decode_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return static_cast<unsigned char>(text[at + i]);
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {Utf8::Kind::kValid, lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const std::size_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
  const std::uint32_t second_min = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const std::uint32_t second_max = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  std::uint32_t code = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if (at + i == text.size()) return {Utf8::Kind::kIncomplete, 0, i};
    const std::uint32_t next = byte(i);
    if (next < (i == 1 ? second_min : 0x80) || next > (i == 1 ? second_max : 0xBF)) return {};
    code = (code << 6) | (next & 0x3F);
  }
  return {Utf8::Kind::kValid, code, bytes};
}

void append_utf8(std::uint32_t code, std::string& text) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

CharClass class_of(std::uint32_t code) {
  // Planes 0 and 1, where almost all text is.
  static const std::vector<CharClass> table = [] {
    std::vector<CharClass> classes(0x20000);
    for (std::uint32_t c = 0; c < classes.size(); ++c) classes[c] = look_up(c);
    return classes;
  }();
  return code < table.size() ? table[code] : look_up(code);
}

}  // namespace llmc
