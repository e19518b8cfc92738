#include "data/text_split.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data/unicode.h"

#ifdef LLMC_HAVE_PCRE2
#include <pcre2.h>
#endif

namespace llmc {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const std::string& text, SplitPattern pattern = SplitPattern::kGpt2) {
  Pieces pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(pattern, text, at);
    EXPECT_TRUE(end > at && end <= text.size());
    if (end <= at) break;
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

TEST(TextSplitTest, FollowsGpt2sPattern) {
  EXPECT_EQ(split("Hello world's 123 ok!!"),
            (Pieces{"Hello", " world", "'s", " 123", " ok", "!!"}));
  EXPECT_EQ(split("we'll they've I'm you're he'd don't 'S"),
            (Pieces{"we", "'ll", " they", "'ve", " I", "'m", " you", "'re", " he", "'d", " don",
                    "'t", " '", "S"}));
  EXPECT_EQ(split("a  b   c"), (Pieces{"a", " ", " b", "  ", " c"}));
  EXPECT_EQ(split("a\n\nb \n c\t\td"),
            (Pieces{"a", "\n", "\n", "b", " \n", " c", "\t", "\t", "d"}));
  EXPECT_EQ(split("end   "), (Pieces{"end", "   "}));
  EXPECT_EQ(split(" "), (Pieces{" "}));
  EXPECT_EQ(split("''s 'll'"), (Pieces{"''", "s", " '", "ll", "'"}));
  EXPECT_EQ(split("a1b2"), (Pieces{"a", "1", "b", "2"}));
  EXPECT_EQ(split("x\u00a0\u3000y"), (Pieces{"x", "\u00a0", "\u3000", "y"}));
  EXPECT_EQ(split("\u00bd\u2167 \u00e9t\u00e9"), (Pieces{"\u00bd\u2167", " \u00e9t\u00e9"}));
}

TEST(TextSplitTest, FollowsLlama3sPattern) {
  const auto split3 = [](const std::string& text) { return split(text, SplitPattern::kLlama3); };
  EXPECT_EQ(split3("Hello world's 1234 ok!!\n\n x"),
            (Pieces{"Hello", " world", "'s", " ", "123", "4", " ok", "!!\n\n", " x"}));
  EXPECT_EQ(split3("we'LL they'vE I'M 'S'Re"),
            (Pieces{"we", "'LL", " they", "'vE", " I", "'M", " '", "S", "'Re"}));
  EXPECT_EQ(split3("it'\u017f 'x '"), (Pieces{"it", "'\u017f", " '", "x", " '"}));
  EXPECT_EQ(split3("\tword (word) _x"), (Pieces{"\tword", " (", "word", ")", " _", "x"}));
  EXPECT_EQ(split3("a  \n \r\n  b"), (Pieces{"a", "  \n \r\n", " ", " b"}));
  EXPECT_EQ(split3("a\nb\n\u3000"), (Pieces{"a", "\n", "b", "\n", "\u3000"}));
  EXPECT_EQ(split3("a   "), (Pieces{"a", "   "}));
  EXPECT_EQ(split3("\u00bd\u2167\u0663\u0664"), (Pieces{"\u00bd\u2167\u0663", "\u0664"}));
  EXPECT_EQ(split3("\xff\xfe\n\xe2\x82x"), (Pieces{"\xff\xfe\n", "\xe2\x82", "x"}));
  EXPECT_EQ(split3(" \xffword"), (Pieces{" \xff", "word"}));
  EXPECT_EQ(split3("\xffword"), (Pieces{"\xffword"}));
}

TEST(TextSplitTest, InvalidBytesAreOtherCharacters) {
  EXPECT_EQ(split("a\xff\xfe b\x80"), (Pieces{"a", "\xff\xfe", " b", "\x80"}));
  EXPECT_EQ(split("\xc3"), (Pieces{"\xc3"}));
  EXPECT_EQ(split("\xe2\x82"
                  "x"),
            (Pieces{"\xe2\x82", "x"}));
  EXPECT_EQ(split("!\xed\xa0\x80?"), (Pieces{"!\xed\xa0\x80?"}));
}

TEST(UnicodeTest, DecodesExactlyTheValidForms) {
  for (std::uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 97) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(code, text);
    const Utf8 whole = decode_utf8(text, 0);
    ASSERT_EQ(whole.kind, Utf8::Kind::kValid) << code;
    EXPECT_EQ(whole.code, code);
    EXPECT_EQ(whole.bytes, text.size());
    for (std::size_t keep = 1; keep < text.size(); ++keep) {
      const Utf8 part = decode_utf8(text.substr(0, keep), 0);
      EXPECT_EQ(part.kind, Utf8::Kind::kIncomplete);
      EXPECT_EQ(part.bytes, keep);
      EXPECT_EQ(decode_utf8(text.substr(0, keep) + "x", 0).kind, Utf8::Kind::kInvalid);
    }
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(decode_utf8(bad, 0).kind, Utf8::Kind::kInvalid);
  }
}

TEST(UnicodeTest, ClassesOfKnownCharacters) {
  for (const std::uint32_t code :
       {0x41u, 0x7Au, 0xAAu, 0xE9u, 0x3B1u, 0x416u, 0x5D0u, 0x4E00u, 0x9FFFu, 0xAC00u, 0x20000u}) {
    EXPECT_EQ(class_of(code), CharClass::kLetter) << std::hex << code;
  }
  for (const std::uint32_t code :
       {0x30u, 0x39u, 0xB2u, 0xBDu, 0x660u, 0x2167u, 0x3007u, 0x1D7CEu}) {
    EXPECT_EQ(class_of(code), CharClass::kNumber) << std::hex << code;
  }
  for (const std::uint32_t code :
       {0x9u, 0xDu, 0x20u, 0x85u, 0xA0u, 0x1680u, 0x200Au, 0x2029u, 0x3000u}) {
    EXPECT_EQ(class_of(code), CharClass::kSpace) << std::hex << code;
  }
  for (const std::uint32_t code : {0x0u, 0x1Cu, 0x27u, 0x5Fu, 0x300u, 0x180Eu, 0x200Bu, 0x20ACu,
                                   0xFFFDu, 0x1F600u, 0x10FFFFu}) {
    EXPECT_EQ(class_of(code), CharClass::kOther) << std::hex << code;
  }
}

#ifdef LLMC_HAVE_PCRE2

class Pcre2Splitter {
 public:
  explicit Pcre2Splitter(SplitPattern split_pattern) {
    const std::string pattern(regular_expression(split_pattern));
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Pcre2Splitter() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Pcre2Splitter(const Pcre2Splitter&) = delete;
  Pcre2Splitter& operator=(const Pcre2Splitter&) = delete;

  Pieces operator()(const std::string& text) const {
    Pieces pieces;
    for (std::size_t at = 0; at < text.size();) {
      const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    at, 0, match_, nullptr);
      EXPECT_GT(found, 0);
      if (found <= 0) break;
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match_);
      EXPECT_EQ(span[0], at);
      pieces.push_back(text.substr(span[0], span[1] - span[0]));
      at = span[1];
    }
    return pieces;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};

/// Characters whose class all versions of Unicode since 6.3 agree on, from every class.
std::string random_character(std::mt19937& random) {
  static const std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges{
      {0x20, 0x7E},       {0x9, 0xD},        {0x0, 0x1F},      {0x80, 0x17F},    {0x2000, 0x203F},
      {0x300, 0x36F},     {0x391, 0x3A1},    {0x410, 0x44F},   {0x5D0, 0x5EA},   {0x660, 0x669},
      {0x966, 0x96F},     {0x2150, 0x2188},  {0x3000, 0x3029}, {0x4E00, 0x4EFF}, {0xAC00, 0xACFF},
      {0x1F600, 0x1F64F}, {0x1D7CE, 0x1D7FF}};
  const auto& [first, last] = ranges[random() % 3 == 0 ? random() % ranges.size() : 0];
  std::string text;
  append_utf8(first + static_cast<std::uint32_t>(random() % (last - first + 1)), text);
  return random() % 3 == 0 ? " " : random() % 12 == 0 ? "'" : text;
}

TEST(TextSplitTest, EqualsPcre2OnRandomText) {
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3}) {
    const Pcre2Splitter reference(pattern);
    std::mt19937 random(5);
    for (int trial = 0; trial < 20'000; ++trial) {
      std::string text;
      for (std::size_t n = random() % 30; n > 0; --n) text += random_character(random);
      if (trial % 3 == 0) text += "'re it's\n\n  we'll 'Ve'\u017f 'LL";
      ASSERT_EQ(split(text, pattern), reference(text)) << "'" << text << "'";
    }
  }
}

TEST(TextSplitTest, EqualsPcre2WhereASymbolStandsForEachInvalidByte) {
  const Pcre2Splitter reference(SplitPattern::kGpt2);
  std::mt19937 random(6);
  for (int trial = 0; trial < 5'000; ++trial) {
    std::string bytes, valid;
    for (std::size_t n = random() % 30; n > 0; --n) {
      if (random() % 3 == 0) {
        bytes += static_cast<char>(0xF8 + random() % 8);  // never part of a character
        valid += "\u2603";
      } else {
        const std::string character = random_character(random);
        bytes += character;
        valid += character;
      }
    }
    Pieces expected;
    std::size_t at = 0;
    for (const std::string& piece : reference(valid)) {
      std::size_t length = piece.size();
      for (std::size_t i = piece.find("\u2603"); i != piece.npos; i = piece.find("\u2603", i + 1)) {
        length -= 2;
      }
      expected.push_back(bytes.substr(at, length));
      at += length;
    }
    ASSERT_EQ(split(bytes), expected);
  }
}

#endif

}  // namespace
}  // namespace llmc
