#include "llmc/infer/text_stream.h"

#include <gtest/gtest.h>

#include "llmc/core/error.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

/// What is printed for each byte of a text, and at the end.
std::vector<std::string> pieces(const std::string& text, const std::vector<std::string>& stops) {
  const auto tokenizer = make_byte_tokenizer();
  TextStream stream(*tokenizer, stops);
  std::vector<std::string> out;
  for (const std::int32_t id : tokenizer->encode(text)) out.push_back(stream.push(id));
  out.push_back(stream.finish());
  EXPECT_TRUE(stream.ended());
  return out;
}

std::string joined(const std::string& text, const std::vector<std::string>& stops) {
  std::string all;
  for (const std::string& piece : pieces(text, stops)) all += piece;
  return all;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, PrintsWholeCharactersAtOnce) {
  EXPECT_EQ(pieces("a\xc3\xa9"
                   "b",
                   {}),
            (Pieces{"a", "", "\xc3\xa9", "b", ""}));
  EXPECT_EQ(pieces("a\xc3", {}), (Pieces{"a", "", "\xc3"}));
}

TEST(TextStream, EndsAtAStopStringAndPrintsNothingOfIt) {
  EXPECT_EQ(pieces("ab\n\nc", {"\n\n"}), (Pieces{"a", "b", "", "", "", ""}));
  // What only began like one comes with the next text, or at the end.
  EXPECT_EQ(pieces("a\nb", {"\n\n"}), (Pieces{"a", "", "\nb", ""}));
  EXPECT_EQ(pieces("a\n", {"\n\n"}), (Pieces{"a", "", "\n"}));
  EXPECT_EQ(joined("xaabaabaacy", {"aabaac"}), "xaab");
  EXPECT_EQ(joined("one two three", {"three", "two"}), "one ");
  EXPECT_EQ(joined("abc", {"c", "abc"}), "");  // of two, the one that begins first
  EXPECT_EQ(joined("na\xc3\xafve", {"\xc3\xaf"}), "na");
}

TEST(TextStream, EndsAtEndOfText) {
  const auto tokenizer = make_byte_tokenizer();
  TextStream stream(*tokenizer, {"xyz"});
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push('x'), "");
  EXPECT_FALSE(stream.ended());
  EXPECT_EQ(stream.push(tokenizer->end_of_text()), "x");
  EXPECT_TRUE(stream.ended());
  EXPECT_EQ(stream.push('b'), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, RefusesAnEmptyStopString) {
  const auto tokenizer = make_byte_tokenizer();
  testing::expect_error(ErrorKind::kConfig, "stop", [&] { TextStream(*tokenizer, {"a", ""}); });
}

}  // namespace
}  // namespace llmc
