#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmc {

/// One UTF-8 character, or what stands in its place.
struct Utf8 {
  enum class Kind {
    kValid,
    kInvalid,     ///< a byte that begins no character; `bytes` is 1
    kIncomplete,  ///< a character whose last bytes lie beyond the end of the text
  };
  Kind kind = Kind::kInvalid;
  std::uint32_t code = 0;  ///< the code point, if valid
  std::size_t bytes = 1;
};

/// The character at text[at], which must exist. Overlong forms, surrogates and code points above
/// U+10FFFF are invalid (Unicode standard, table 3-7).
Utf8 decode_utf8(std::string_view text, std::size_t at);

/// Appends a code point as UTF-8.
void append_utf8(std::uint32_t code, std::string& text);

enum class CharClass : std::uint8_t { kOther, kLetter, kNumber, kSpace };

/// Letter and number are Unicode's categories L and N, space its property White_Space.
CharClass class_of(std::uint32_t code);

}  // namespace llmc
