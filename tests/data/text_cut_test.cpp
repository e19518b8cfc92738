#include "data/text_cut.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "llmc/data/tokenizer.h"
#include "support/test_data.h"

namespace llmc {
namespace {

TEST(TextCutTest, FindsTheLastPlaceThatIsSure) {
  EXPECT_EQ(last_safe_cut(""), 0u);
  EXPECT_EQ(last_safe_cut("abc"), 0u);
  EXPECT_EQ(last_safe_cut("abc "), 3u);
  EXPECT_EQ(last_safe_cut("abc def"), 3u);
  EXPECT_EQ(last_safe_cut("abc def\n\n  "), 7u);
  EXPECT_EQ(last_safe_cut("12 34"), 2u);
  EXPECT_EQ(last_safe_cut("12.34"), 0u);
  EXPECT_EQ(last_safe_cut("a1b2"), 3u);
  EXPECT_EQ(last_safe_cut("...  \n\n"), 0u);
  EXPECT_EQ(last_safe_cut("字。字"), 3u);
  EXPECT_EQ(last_safe_cut("é é"), 2u);
  // A character that is not all there may become anything.
  EXPECT_EQ(last_safe_cut("ab\xe5\xad"), 0u);
  EXPECT_EQ(last_safe_cut("\xad\xad."), 0u);
  EXPECT_EQ(last_safe_cut("x\xff."), 0u);
}

TEST(TextCutTest, KeepsCharactersWhole) {
  EXPECT_EQ(last_character_border("abc"), 3u);
  EXPECT_EQ(last_character_border("aé"), 3u);
  EXPECT_EQ(last_character_border("a\xf0\x9f\x98"), 1u);
  EXPECT_EQ(last_character_border("a\xe5"), 1u);
  EXPECT_EQ(last_character_border("\x80\x80\x80\x80"), 4u);
  EXPECT_EQ(last_character_border("\xff"), 1u);
}

/// Text of pieces that splitting patterns treat in different ways.
std::string random_text(std::mt19937& random, int pieces) {
  static const std::vector<std::string> kPieces = {
      "a",        "Word", "the", "é",      "字",     "1",  "234", " ",      "  ", "\n", "\r\n",
      "\t",       "\n\n", ".",   ",",      "?!",     "'s", "'LL", "'",      "。", "😀",  "\xff",
      "\xe5\xad", "\x01", "٣",   "\u00a0", "\u3000", "_",  "-",   "\u0301", "ß",  "ſ",  "\u00bd"};
  std::string text;
  for (int i = 0; i < pieces; ++i) text += kPieces[random() % kPieces.size()];
  return text;
}

void expect_no_token_changed(const Tokenizer& tokenizer) {
  std::mt19937 random(7);
  int cuts = 0;
  for (int round = 0; round < 5'000; ++round) {
    const std::string text = random_text(random, 2 + static_cast<int>(random() % 20));
    const std::string seen = text.substr(0, random() % (text.size() + 1));
    const std::size_t cut = last_safe_cut(seen);
    ASSERT_LE(cut, seen.size());
    auto ids = tokenizer.encode(text.substr(0, cut));
    tokenizer.encode(ids, text.substr(cut));
    ASSERT_EQ(ids, tokenizer.encode(text)) << "'" << text << "' cut at " << cut;
    cuts += cut > 0;
  }
  EXPECT_GT(cuts, 2'000);
}

TEST(TextCutTest, ChangesNoToken) {
  LLMC_REQUIRE_TEST_DATA();
  expect_no_token_changed(*load_tokenizer(testing::test_data_folder()));
  expect_no_token_changed(*load_tokenizer(testing::test_data_folder() / "llama3.tiktoken"));
}

}  // namespace
}  // namespace llmc
