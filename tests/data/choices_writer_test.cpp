#include "llmc/data/choices.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "llmc/core/file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

class ChoicesWriterTest : public ::testing::Test {
 protected:
  std::int64_t write(const std::string& lines) {
    write_text(folder_ / "in.jsonl", lines);
    return write_choices(folder_ / "out.bin", folder_ / "in.jsonl", *make_byte_tokenizer());
  }
  void expect_refused(const std::string& lines, const std::string& part) {
    expect_error(ErrorKind::kInput, part, [&] { write(lines); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.bin"));
  }

  testing::TempFolder folder_;
};

TEST_F(ChoicesWriterTest, WritesTheFormatOfLlmc) {
  EXPECT_EQ(write(R"({"ind":7,"ctx":"ab","endings":["c","de","f","g"],"label":2})"
                  "\n\n"
                  R"({"ctx":"x","endings":["","1","2","3"],"label":0})"),
            2);
  const std::string bytes = read_text(folder_ / "out.bin");
  ASSERT_GE(bytes.size(), 1024u);
  std::vector<std::int32_t> header(256);
  std::memcpy(header.data(), bytes.data(), 1024);
  const std::vector<std::uint16_t> wanted = {
      65535, 42,    0,  2, 4, 2, 'a', 'b', 2, ' ', 'c', 3,   ' ', 'd', 'e', 2,   ' ', 'f', 2,  ' ',
      'g',   65535, 36, 1, 0, 4, 1,   'x', 1, ' ', 2,   ' ', '1', 2,   ' ', '2', 2,   ' ', '3'};
  EXPECT_EQ(header[0], 20240522);
  EXPECT_EQ(header[1], 1);
  EXPECT_EQ(header[2], 2);
  EXPECT_EQ(header[3], 42);
  for (std::size_t i = 4; i < header.size(); ++i) EXPECT_EQ(header[i], 0);
  std::vector<std::uint16_t> words((bytes.size() - 1024) / 2);
  std::memcpy(words.data(), bytes.data() + 1024, words.size() * 2);
  EXPECT_EQ(words, wanted);

  const auto examples = read_choices(folder_ / "out.bin", nullptr);
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].context, (std::vector<std::int32_t>{'a', 'b'}));
  ASSERT_EQ(examples[0].endings.size(), 4u);
  EXPECT_EQ(examples[0].endings[1].tokens, (std::vector<std::int32_t>{' ', 'd', 'e'}));
  EXPECT_EQ(examples[0].label, 2);
  EXPECT_EQ(examples[1].label, 0);
}

TEST_F(ChoicesWriterTest, RefusesOtherLines) {
  const std::string good = R"({"ctx":"a","endings":["b","c","d","e"],"label":0})"
                           "\n";
  expect_refused("", "in.jsonl: expected examples, got none");
  expect_refused(good + "[]", "in.jsonl: line 2: expected a JSON object");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  expect_refused(R"({"ctx":"a","endings":["b","c","d","e"],"label":)" + deep + "}",
                 "line 1: expected a JSON object");
  expect_refused(good + "\n{}", "line 3: expected 4 texts under 'endings', got something else");
  expect_refused(R"({"ctx":"a","endings":["b","c","d"],"label":0})",
                 "line 1: expected 4 texts under 'endings', got 3");
  expect_refused(R"({"ctx":"a","endings":["b","c","d",1],"label":0})",
                 "expected a text under 'endings'");
  expect_refused(R"({"endings":["b","c","d","e"],"label":0})", "expected a text under 'ctx'");
  expect_refused(R"({"ctx":"","endings":["b","c","d","e"],"label":0})", "got an empty one");
  expect_refused(R"({"ctx":"a","endings":["b","c","d","e"]})", "under 'label', got none");
  expect_refused(R"({"ctx":"a","endings":["b","c","d","e"],"label":4})", "under 'label', got 4");
  expect_refused(R"({"ctx":"a","endings":["b","c","d","e"],"label":-1})", "under 'label', got -1");
  expect_refused("{\"ctx\":\"" + std::string(70'000, 'x') +
                     "\",\"endings\":[\"b\",\"c\",\"d\",\"e\"],\"label\":0}",
                 "expected at most 65535 tokens in a text, got 70000");
  expect_refused("{\"ctx\":\"" + std::string(40'000, 'x') +
                     "\",\"endings\":[\"b\",\"c\",\"d\",\"e\"],\"label\":0}",
                 "expected at most 65535 bytes");
}

}  // namespace
}  // namespace llmc
