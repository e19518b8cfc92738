#include "llmc/data/choices.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;
using Ids = std::vector<std::int32_t>;

class ChoiceFile : public ::testing::Test {
 protected:
  std::filesystem::path put(const std::string& bytes) {
    const auto path = folder_ / concat("set", ++files_);
    AppendFile(path).append(bytes);
    return path;
  }
  void expect_refused(const std::string& bytes, const std::string& message,
                      ErrorKind kind = ErrorKind::kInput) {
    const auto path = put(bytes);
    expect_error(kind, message.c_str(), [&] { read_choices(path, tokenizer_.get()); });
    expect_error(kind, path.string().c_str(), [&] { read_choices(path, tokenizer_.get()); });
  }

  testing::TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
  int files_ = 0;
};

std::string bytes_of(const std::vector<std::uint16_t>& words, std::int32_t examples,
                     std::int32_t magic = 20240522, std::int32_t version = 1) {
  std::int32_t header[256] = {magic, version, examples, 100};
  std::string bytes(reinterpret_cast<const char*>(header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(words.data()), 2 * words.size());
  return bytes;
}

/// Two examples of "ab" with endings " c" and " dé", then with three endings.
const std::vector<std::uint16_t> kWords = {
    65535, 32, 0, 1, 2, 2, 'a', 'b', 2,   ' ', 'c', 4,   ' ', 'd', 0xc3, 0xa9,
    65535, 30, 1, 2, 3, 1, 'x', 2,   ' ', 'y', 1,   'z', 2,   ' ', 'w'};

TEST_F(ChoiceFile, ReadsLlmcsBinary) {
  auto words = kWords;
  const auto path = put(bytes_of(words, 2));
  const auto examples = read_choices(path, tokenizer_.get());
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].context, (Ids{'a', 'b'}));
  EXPECT_EQ(examples[0].label, 1);
  ASSERT_EQ(examples[0].endings.size(), 2u);
  EXPECT_EQ(examples[0].endings[0].tokens, (Ids{' ', 'c'}));
  EXPECT_EQ(examples[0].endings[0].characters, 1);
  EXPECT_EQ(examples[0].endings[1].characters, 2);
  EXPECT_EQ(examples[1].endings.size(), 3u);
  EXPECT_EQ(examples[1].endings[1].characters, 1);
  EXPECT_EQ(read_choices(path, nullptr)[0].endings[1].characters, 0);
}

TEST_F(ChoiceFile, TokensOfAnotherTokenizerHaveNoText) {
  auto words = kWords;
  words[10] = 300;
  const auto examples = read_choices(put(bytes_of(words, 2)), tokenizer_.get());
  EXPECT_EQ(examples[0].endings[0].characters, 0);
  EXPECT_EQ(examples[0].endings[1].characters, 2);
  expect_error(ErrorKind::kInput, "example 1: expected tokens below the 257 of the model, got 300",
               [&] { check_choices(examples, 257, 8); });
}

TEST(ChoiceChecksum, DependsOnAllThatTheyHold) {
  const ChoiceExample example{{1, 2}, {{{3}, 4}, {{5, 6}, 7}}, 1};
  const auto of = [](const ChoiceExample& e) { return checksum_of(std::vector{e}); };
  const std::uint64_t checksum = of(example);
  EXPECT_EQ(of(example), checksum);
  EXPECT_NE(checksum_of(std::vector{example, example}), checksum);
  const auto changed = [&](auto change) {
    ChoiceExample other = example;
    change(other);
    EXPECT_NE(of(other), checksum);
  };
  changed([](ChoiceExample& e) { e.label = 0; });
  changed([](ChoiceExample& e) { e.context = {1}; });
  changed([](ChoiceExample& e) { e.endings[0].tokens = {4}; });
  changed([](ChoiceExample& e) { e.endings[1].characters = 8; });
  changed([](ChoiceExample& e) { e.endings.pop_back(); });
  changed([](ChoiceExample& e) {  // the same tokens in the same order
    e.context = {1, 2, 3};
    e.endings[0].tokens = {5};
    e.endings[1].tokens = {6};
  });
}

TEST_F(ChoiceFile, RefusesDamagedBinaries) {
  const std::string whole = bytes_of(kWords, 2);
  for (std::size_t size = 4; size < whole.size(); size += size < 1024 ? 101 : 1) {
    const auto path = put(whole.substr(0, size));
    EXPECT_THROW(read_choices(path, tokenizer_.get()), Error) << size;
  }
  expect_refused(whole.substr(0, whole.size() - 2), "example 2: expected a whole ending");
  expect_refused(whole.substr(0, whole.size() - 1), "whole 16-bit words");
  expect_refused(whole + "xx", "expected the file to end after its 2 examples");
  expect_refused(bytes_of(kWords, 2, 20240522, 2), "expected version 1, got 2");
  expect_refused(bytes_of({}, 0), "expected examples, got none");
  const auto changed = [](std::size_t at, std::uint16_t word) {
    auto words = kWords;
    words[at] = word;
    return bytes_of(words, 2);
  };
  expect_refused(changed(16, 7), "example 2: expected the mark 65535 where it begins, got 7");
  expect_refused(changed(17, 32), "example 2: expected 32 bytes, as it says, got 30");
  expect_refused(changed(18, 0), "example 2: expected the index 1, got 0");
  expect_refused(changed(3, 2), "example 1: expected a label below its 2 endings, got 2");
  expect_refused(changed(4, 0), "example 1: expected at least one ending, got 0");
  expect_refused(changed(5, 0), "example 1: expected at least one token of the context");
  expect_refused(changed(8, 0), "example 1: expected at least one token of the ending");
}

TEST_F(ChoiceFile, ReadsJsonLines) {
  const auto path =
      put("{\"ctx\": \"ab\", \"endings\": [\"c\", \"d\\u00e9\"], \"label\": 1, \"more\": null}\n"
          "\n"
          "{\"label\": \"2\", \"ctx\": \"x \\n\", \"endings\": [\"y\", \"\", \"w\"]}\r\n"
          "{\"ctx\": \"\", \"endings\": [\"only\"], \"label\": 0}");
  const auto examples = read_choices(path, tokenizer_.get());
  ASSERT_EQ(examples.size(), 3u);
  EXPECT_EQ(examples[0].context, (Ids{'a', 'b'}));
  EXPECT_EQ(examples[0].endings[0].tokens, (Ids{' ', 'c'}));
  EXPECT_EQ(examples[0].endings[0].characters, 1);
  EXPECT_EQ(examples[0].endings[1].tokens, (Ids{' ', 'd', 0xc3, 0xa9}));
  EXPECT_EQ(examples[0].endings[1].characters, 2);
  EXPECT_EQ(examples[0].label, 1);
  // White space at the context's end goes to the endings.
  EXPECT_EQ(examples[1].context, (Ids{'x'}));
  EXPECT_EQ(examples[1].endings[0].tokens, (Ids{' ', '\n', ' ', 'y'}));
  EXPECT_EQ(examples[1].endings[0].characters, 1);
  EXPECT_EQ(examples[1].endings[1].characters, 0);
  EXPECT_EQ(examples[1].label, 2);
  EXPECT_EQ(examples[2].context, (Ids{tokenizer_->end_of_text()}));
  EXPECT_EQ(examples[2].endings[0].tokens.size(), 5u);
}

TEST_F(ChoiceFile, RefusesBadLines) {
  const std::string good = "{\"ctx\": \"ab\", \"endings\": [\"c\", \"d\"], \"label\": 1}\n";
  const auto refused = [&](const std::string& line, const std::string& message) {
    expect_refused(good + "\n" + line + "\n" + good, message);
  };
  refused("{\"endings\": [\"c\"], \"label\": 0}", "line 3: expected a text under \"ctx\"");
  refused("{\"ctx\": \"ab\", \"label\": 0}", "line 3: expected a list of texts under \"endings\"");
  refused("{\"ctx\": \"ab\", \"endings\": [\"c\"]}", "line 3: expected the number");
  refused("{\"ctx\": 7, \"endings\": [\"c\"], \"label\": 0}", "\"ctx\", got number");
  refused("{\"ctx\": \"ab\", \"endings\": \"c\", \"label\": 0}", "\"endings\", got string");
  refused("{\"ctx\": \"ab\", \"endings\": [], \"label\": 0}", "got an empty one");
  refused("{\"ctx\": \"ab\", \"endings\": [\"c\", 1], \"label\": 0}", "\"endings\", got number");
  for (const char* label : {"2", "-1", "\"2\"", "\"1x\"", "0.5", "null", "18446744073709551615"}) {
    refused(concat("{\"ctx\": \"ab\", \"endings\": [\"c\", \"d\"], \"label\": ", label, "}"),
            "line 3: expected a label from 0 to 1");
  }
  refused("{\"ctx\": ", "line 3: expected a JSON object, got text that is none");
  refused("[1]", "line 3: expected a JSON object, got array");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  refused("{\"ctx\": \"ab\", \"endings\": [\"c\"], \"label\": " + deep + "}",
          "line 3: expected a JSON object");
  refused("{\"ctx\": \"ab\", \"endings\": [\"c\"], \"label\": 1e999}",
          "line 3: expected a JSON object");
  expect_refused("", "expected examples, got none");
  expect_refused("\n\n", "expected examples, got none");
  const auto path = put(good);
  expect_error(ErrorKind::kConfig, "expected a tokenizer", [&] { read_choices(path, nullptr); });
  EXPECT_THROW(read_choices(folder_ / "missing", tokenizer_.get()), Error);
}

}  // namespace
}  // namespace llmc
