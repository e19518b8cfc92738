#include "data/byte_characters.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "data/unicode.h"

namespace llmc {
namespace {

const std::array<std::uint32_t, 256>& characters() {
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

}  // namespace

std::string to_printable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(characters()[static_cast<unsigned char>(c)], text);
  return text;
}

std::optional<std::string> from_printable(std::string_view text) {
  static const std::array<std::int16_t, 0x200> byte_of = [] {
    std::array<std::int16_t, 0x200> table{};
    table.fill(-1);
    for (std::size_t b = 0; b < 256; ++b) table[characters()[b]] = static_cast<std::int16_t>(b);
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

const std::string& bytes_in_order() {
  static const std::string order = [] {
    std::string bytes;
    for (int b = 0; b < 256; ++b) bytes += static_cast<char>(b);
    std::sort(bytes.begin(), bytes.end(), [](char a, char b) {
      return characters()[static_cast<unsigned char>(a)] <
             characters()[static_cast<unsigned char>(b)];
    });
    return bytes;
  }();
  return order;
}

}  // namespace llmc
