#include "llmc/data/tokenizer_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "data/byte_characters.h"
#include "data/text_split.h"
#include "llmc/core/file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TempFolder;
using Tokens = std::vector<std::string>;

const fs::path kGolden = fs::path(LLMC_GOLDEN_DIR) / "tokenizers";

Tokens tokens_of(const Tokenizer& tokenizer) {
  Tokens tokens;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.emplace_back(tokenizer.token_bytes(id));
  }
  return tokens;
}

/// The definition: count all pairs, merge the first of the most frequent ones, repeat.
Tokens train_naively(const std::string& text, const TokenizerTrainerOptions& options) {
  Tokens tokens;
  for (const char c : bytes_in_order()) tokens.emplace_back(1, c);
  Tokens special{"<|endoftext|>"};
  special.insert(special.end(), options.special_tokens.begin(), options.special_tokens.end());
  const auto id_of = [&](char c) { return static_cast<std::int32_t>(bytes_in_order().find(c)); };
  std::vector<std::vector<std::int32_t>> pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(SplitPattern::kGpt2, text, at);
    pieces.emplace_back();
    for (; at < end; ++at) pieces.back().push_back(id_of(text[at]));
  }
  while (static_cast<std::int64_t>(tokens.size() + special.size()) < options.vocab_size) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counts;
    for (const auto& piece : pieces) {
      for (std::size_t i = 0; i + 1 < piece.size(); ++i) ++counts[{piece[i], piece[i + 1]}];
    }
    std::pair<std::int32_t, std::int32_t> best;
    std::string merged;
    std::int64_t most = options.min_frequency - 1;
    for (const auto& [pair, count] : counts) {
      const std::string token = tokens[static_cast<std::size_t>(pair.first)] +
                                tokens[static_cast<std::size_t>(pair.second)];
      const bool known = std::count(tokens.begin(), tokens.end(), token) > 0 ||
                         std::count(special.begin(), special.end(), token) > 0;
      if (count <= most || known) continue;
      most = count;
      best = pair;
      merged = token;
    }
    if (merged.empty()) break;
    const auto id = static_cast<std::int32_t>(tokens.size());
    tokens.push_back(merged);
    for (auto& piece : pieces) {
      for (std::size_t i = 0; i + 1 < piece.size(); ++i) {
        if (piece[i] != best.first || piece[i + 1] != best.second) continue;
        piece[i] = id;
        piece.erase(piece.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  tokens.insert(tokens.end(), special.begin(), special.end());
  return tokens;
}

std::string random_text(std::mt19937& random, std::size_t size, std::string_view letters) {
  std::string text;
  while (text.size() < size) text += letters[random() % letters.size()];
  return text;
}

TEST(TokenizerTrainerTest, EqualsTheDefinitionOnRandomText) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 40; ++trial) {
    const std::string letters = trial % 2 == 0 ? "ab " : "aaabcd  .'s\xc3\xa9\n";
    const std::string text = random_text(random, 400, letters);
    TokenizerTrainerOptions options;
    options.vocab_size = 258 + static_cast<std::int64_t>(random() % 80);
    options.min_frequency = 1 + static_cast<std::int64_t>(random() % 3);
    if (trial % 3 == 0) options.special_tokens = {"ab", "aa"};
    if (trial % 3 == 0) options.vocab_size += 2;
    TokenizerTrainer trainer(options);
    trainer.add(text);
    const auto tokenizer = trainer.train();
    ASSERT_EQ(tokens_of(*tokenizer), train_naively(text, options)) << "trial " << trial;
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(TokenizerTrainerTest, LearnsWhatHuggingFacesTrainerDoes) {
  TokenizerTrainer trainer({.vocab_size = 1201});
  trainer.add(read_text(kGolden / "training.txt"));
  const TempFolder folder;
  trainer.train()->save(folder.path());
  EXPECT_EQ(read_text(folder / "merges.txt"),
            "#version: 0.2\n" + read_text(kGolden / "training_merges.txt"));
}

TEST(TokenizerTrainerTest, DoesNotDependOnThreadsOrOnHowTheTextArrives) {
  const TempFolder folder;
  std::mt19937 random(2);
  std::string text;
  Tokens words;
  for (int i = 0; i < 500; ++i) words.push_back(random_text(random, 1 + random() % 9, "abcdefgh"));
  while (text.size() < 9'500'000) text += words[random() % 500 * (random() % 500) / 500] + ' ';
  write_text(folder / "long.txt", text);
  write_text(folder / "empty.txt", "");
  write_text(folder / "short.txt", "a short one");
  write_text(folder / "lines.jsonl", "{\"body\": \"one\\nline\"}\n{\"body\": \"another\"}\n");
  PrepareOptions inputs;
  inputs.inputs = {folder.path().string()};
  inputs.field = "body";
  TokenizerTrainer whole({.vocab_size = 700, .threads = 1});
  whole.add(text);
  for (const char* document : {"a short one", "one\nline", "another"}) whole.add(document);
  const std::string expected = whole.train()->hash();
  for (const int threads : {1, 3}) {
    TokenizerTrainer trainer({.vocab_size = 700, .threads = threads});
    std::int64_t told = 0;
    trainer.add_inputs(inputs, [&](std::int64_t bytes) { told = bytes; });
    EXPECT_EQ(trainer.bytes(), whole.bytes());
    EXPECT_EQ(told, whole.bytes());
    EXPECT_EQ(trainer.pieces(), whole.pieces());
    EXPECT_EQ(trainer.train()->hash(), expected);
  }
}

TEST(TokenizerTrainerTest, IdsAreBytesMergesEndOfTextAndSpecialTokens) {
  TokenizerTrainer trainer(
      {.vocab_size = 300, .min_frequency = 3, .special_tokens = {"<|user|>", "the"}});
  trainer.add("then then then, that that the");
  const auto tokenizer = trainer.train();
  // After "th" and " th", both "en" and " the" occur 3 times; e has the lower id. Then nothing
  // does.
  const Tokens tokens = tokens_of(*tokenizer);
  ASSERT_EQ(tokens.size(), 256u + 6u);
  EXPECT_EQ(tokens[0], "!");
  EXPECT_EQ(tokens[256], "th");
  EXPECT_EQ(tokens[257], " th");
  EXPECT_EQ(tokens[258], "en");
  EXPECT_EQ(tokens[259], "<|endoftext|>");
  EXPECT_EQ(tokens[260], "<|user|>");
  EXPECT_EQ(tokens[261], "the");
  EXPECT_EQ(tokenizer->end_of_text(), 259);
  for (const std::int32_t id : tokenizer->encode("<|user|> the<|endoftext|>the")) {
    EXPECT_LT(id, 259);
  }
  const TempFolder folder;
  tokenizer->save(folder.path());
  for (const std::string name : {"", "vocab.json", "tokenizer.json"}) {
    const auto again = load_tokenizer(folder / name);
    EXPECT_EQ(tokens_of(*again), tokens);
    EXPECT_EQ(again->encode("then the"), tokenizer->encode("then the"));
  }
}

TEST(TokenizerTrainerTest, RefusesWhatCannotBe) {
  const auto expect_refused = [](const TokenizerTrainerOptions& options, const std::string& part) {
    expect_error(ErrorKind::kConfig, part, [&] { TokenizerTrainer trainer(options); });
  };
  expect_refused({.vocab_size = 256}, "vocab_size: expected 257");
  expect_refused({.vocab_size = 257, .special_tokens = {"<a>"}}, "vocab_size: expected 258");
  expect_refused({.vocab_size = std::int64_t{1} << 40}, "vocab_size");
  expect_refused({.min_frequency = 0}, "min_frequency: expected at least 1, got 0");
  expect_refused({.special_tokens = {"a"}}, "special_tokens: expected two or more");
  expect_refused({.special_tokens = {"a b"}}, "got 'a b'");
  expect_refused({.special_tokens = {"\u6c34\u6c34"}}, "of ASCII");
  expect_refused({.special_tokens = {"<a>", "<a>"}}, "got '<a>' again");
  expect_refused({.special_tokens = {"<|endoftext|>"}}, "got '<|endoftext|>' again");
  expect_refused({.threads = -1}, "threads");
  const TokenizerTrainer nothing({});
  expect_error(ErrorKind::kInput, "expected text to learn from", [&] { nothing.train(); });
  const TempFolder folder;
  PrepareOptions inputs;
  TokenizerTrainer trainer({.threads = 2});
  const auto expect_bad = [&](const std::string& input, const std::string& part) {
    inputs.inputs = {input};
    expect_error(ErrorKind::kInput, part, [&] { trainer.add_inputs(inputs); });
  };
  expect_bad("/no/such/file", "/no/such/file");
  write_text(folder / "a.jsonl", "{\"text\": \"one\"}\n{\"body\": \"two\"}\n");
  expect_bad((folder / "a.jsonl").string(), "a.jsonl: line 2: ");
  inputs.out_dir = folder / "out";
  expect_bad(folder.path().string(), "outside of the input folder");
}

}  // namespace
}  // namespace llmc
