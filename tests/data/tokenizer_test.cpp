#include "llmc/data/tokenizer.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "llmc/core/file.h"
#include "support/temp_folder.h"
#include "support/test_data.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TempFolder;
using testing::test_data_folder;
using Ids = std::vector<std::int32_t>;

std::string random_bytes(std::mt19937& random, std::size_t count) {
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

/// An llm.c tokenizer file: all bytes, end-of-text, then these tokens.
void write_llmc_file(const fs::path& path, const std::vector<std::string>& tokens,
                     std::uint32_t version = 2, std::uint32_t end_of_text = 256) {
  std::array<std::uint32_t, 256> header{
      20240328, version, static_cast<std::uint32_t>(257 + tokens.size()), end_of_text};
  FileWriter writer(path);
  writer.write_value(header);
  const auto put = [&](const std::string& token) {
    writer.write_value(static_cast<std::uint8_t>(token.size()));
    writer.write(token);
  };
  // Downwards, so that ids are not byte values.
  for (int b = 255; b >= 0; --b) put(std::string(1, static_cast<char>(b)));
  put("<|endoftext|>");
  for (const std::string& token : tokens) put(token);
  writer.commit();
}

const std::vector<std::string> kSomeMerges{"th", "the", " a", " th", " the", "in", "ing", " thing"};

std::unique_ptr<Tokenizer> small_tokenizer(const TempFolder& folder) {
  write_llmc_file(folder / "small.bin", kSomeMerges);
  return load_tokenizer(folder / "small.bin");
}

void expect_round_trips(const Tokenizer& tokenizer, unsigned seed) {
  std::mt19937 random(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const std::string text = random_bytes(random, random() % 200);
    const Ids ids = tokenizer.encode(text);
    ASSERT_EQ(tokenizer.decode(ids), text);
    for (const std::int32_t id : ids) ASSERT_NE(id, tokenizer.end_of_text());
  }
  const std::string name = "<|endoftext|>";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(name)), name);
  EXPECT_GT(tokenizer.encode(name).size(), 1u);
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.end_of_text()), name);
}

void expect_equal(const Tokenizer& a, const Tokenizer& b) {
  ASSERT_EQ(a.vocab_size(), b.vocab_size());
  EXPECT_EQ(a.end_of_text(), b.end_of_text());
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_EQ(a.name(), b.name());
  for (std::int32_t id = 0; id < a.vocab_size(); ++id) {
    ASSERT_EQ(a.token_bytes(id), b.token_bytes(id));
  }
  std::mt19937 random(9);
  for (int trial = 0; trial < 50; ++trial) {
    const std::string text = random_bytes(random, 60) + " the thing in a thing then";
    ASSERT_EQ(a.encode(text), b.encode(text));
  }
}

TEST(ByteTokenizerTest, IdsAreBytes) {
  const auto tokenizer = load_tokenizer("byte");
  EXPECT_EQ(tokenizer->name(), "byte");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_EQ(tokenizer->encode("A\xff"), (Ids{65, 255}));
  expect_round_trips(*tokenizer, 1);
  for (const std::int32_t id : {-1, 257}) {
    expect_error(ErrorKind::kInput, "below 257", [&] { tokenizer->token_bytes(id); });
  }
}

TEST(BpeTokenizerTest, MergesFollowFromTheOrderOfIds) {
  const TempFolder folder;
  const auto tokenizer = small_tokenizer(folder);
  EXPECT_EQ(tokenizer->vocab_size(), 265);
  // "the" splits as one piece, " thing" as another; 'x' is id 255 - 'x'.
  EXPECT_EQ(tokenizer->encode("the thing"), (Ids{258, 264}));
  EXPECT_EQ(tokenizer->encode(" then"), (Ids{261, 255 - 'n'}));
  EXPECT_EQ(tokenizer->encode("\xff"), (Ids{0}));
  expect_round_trips(*tokenizer, 2);
  expect_error(ErrorKind::kInput, "below 265", [&] { tokenizer->token_bytes(265); });
}

TEST(BpeTokenizerTest, SavedTokenizersLoadAgain) {
  const TempFolder folder;
  const auto bpe = small_tokenizer(folder);
  const auto byte = make_byte_tokenizer();
  EXPECT_NE(bpe->hash(), byte->hash());
  bpe->save(folder / "saved");
  expect_equal(*load_tokenizer(folder / "saved"), *bpe);
  expect_equal(*load_tokenizer(folder / "saved/vocab.json"), *bpe);
  expect_equal(*load_tokenizer(folder / "saved/merges.txt"), *bpe);
  byte->save(folder / "saved");  // replaces the other
  expect_equal(*load_tokenizer(folder / "saved"), *byte);
  bpe->save(folder / "saved");
  expect_equal(*load_tokenizer(folder / "saved"), *bpe);
  save_llmc_tokenizer(*bpe, folder / "again.bin");
  EXPECT_EQ(read_text(folder / "again.bin"), read_text(folder / "small.bin"));
}

TEST(BpeTokenizerTest, FindsFilesUnderTheirOtherNames) {
  const TempFolder folder;
  const auto bpe = small_tokenizer(folder);
  bpe->save(folder / "saved");
  const auto expect_found = [&](const std::string& vocab, const std::string& merges) {
    const TempFolder other;
    fs::copy_file(folder / "saved/vocab.json", other / vocab);
    fs::copy_file(folder / "saved/merges.txt", other / merges);
    expect_equal(*load_tokenizer(other.path()), *bpe);
    expect_equal(*load_tokenizer(other / vocab), *bpe);
    expect_equal(*load_tokenizer(other / merges), *bpe);
  };
  expect_found("encoder.json", "vocab.bpe");
  expect_found("gpt2_encoder.json", "gpt2_vocab.bpe");
  expect_found("gpt2_vocab.json", "gpt2_merges.txt");
}

TEST(BpeTokenizerTest, OneTokenizerServesSeveralThreads) {
  const TempFolder folder;
  const auto tokenizer = small_tokenizer(folder);
  std::vector<std::thread> threads;
  std::array<bool, 4> equal{};
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(3);
      bool all = true;
      for (int i = 0; i < 200; ++i) {
        const std::string text = random_bytes(random, 50) + " the thing";
        all = all && tokenizer->decode(tokenizer->encode(text)) == text;
      }
      equal[t] = all;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool good : equal) EXPECT_TRUE(good);
}

TEST(BpeTokenizerTest, LongPiecesDoNotTakeQuadraticTime) {
  const TempFolder folder;
  const auto tokenizer = small_tokenizer(folder);
  std::string text;
  while (text.size() < 2'000'000) text += "thing";
  const auto begin = std::chrono::steady_clock::now();
  const Ids ids = tokenizer->encode(text);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(ids.size(), 2u * 400'000u);
}

TEST(LlmcTokenizerFileTest, DecodesOnlyWhereMergesDoNotFollow) {
  const TempFolder folder;
  const fs::path path = folder / "t.bin";
  const auto expect_decode_only = [&](const std::vector<std::string>& tokens,
                                      const std::string& part) {
    write_llmc_file(path, tokens);
    const auto tokenizer = load_tokenizer(path);
    EXPECT_EQ(tokenizer->decode({255 - 'x', 257}), "x" + tokens[0]);
    expect_error(ErrorKind::kInput, part, [&] { tokenizer->encode("the"); });
    tokenizer->save(folder / "saved");
    const auto again = load_tokenizer(folder / "saved");
    EXPECT_EQ(again->hash(), tokenizer->hash());
    expect_error(ErrorKind::kInput, part, [&] { again->encode("the"); });
  };
  expect_decode_only({"the", "th"}, "id 257 is not a merge of two lower ids");
  expect_decode_only({"th", "th"}, "id 258 is not a merge");
  expect_decode_only({"th", "x"}, "id 258 repeats the byte of id 135");
}

TEST(LlmcTokenizerFileTest, RefusesDamagedFiles) {
  const TempFolder folder;
  const fs::path path = folder / "t.bin";
  write_llmc_file(path, kSomeMerges);
  const std::string good = read_text(path);
  const auto expect_refused = [&](const std::string& bytes, const std::string& part) {
    write_text(path, bytes);
    expect_error(ErrorKind::kInput, part, [&] { load_tokenizer(path); });
  };
  const auto with_word = [&](std::size_t index, std::uint32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + index * 4, &value, 4);
    return bytes;
  };
  expect_refused("", "at least 1024 bytes, got 0");
  expect_refused(good.substr(0, 1000), "at least 1024 bytes, got 1000");
  expect_refused(good.substr(0, good.size() - 1), "truncated");
  expect_refused(good + "x", "too long");
  expect_refused(with_word(0, 20240520), "got magic 20240520");
  expect_refused(with_word(1, 3), "expected version 1 or 2");
  expect_refused(with_word(1, 1), "expected 50257 tokens in a file of version 1");
  expect_refused(with_word(2, 0), "got 0 and");
  expect_refused(with_word(2, 0xffffffff), "got 4294967295 and");
  expect_refused(with_word(3, 265), "got 265 and 265");
  std::string empty_token = good;
  empty_token[1024] = '\0';
  expect_refused(empty_token, "1 to 255 bytes for token 0");

  std::mt19937 random(4);
  for (int trial = 0; trial < 60; ++trial) {
    std::string bytes = good;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] ^= 1 << random() % 8;
    write_text(path, bytes);
    try {
      const auto tokenizer = load_tokenizer(path);
      for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) tokenizer->token_bytes(id);
    } catch (const Error&) {
    }
  }
}

TEST(Gpt2FilesTest, RefusesDamagedFiles) {
  const TempFolder folder;
  small_tokenizer(folder)->save(folder.path());
  const std::string vocab = read_text(folder / "vocab.json");
  const std::string merges = read_text(folder / "merges.txt");
  const auto expect_refused = [&](const std::string& bad_vocab, const std::string& bad_merges,
                                  const std::string& part) {
    write_text(folder / "vocab.json", bad_vocab);
    write_text(folder / "merges.txt", bad_merges);
    expect_error(ErrorKind::kInput, part, [&] { load_tokenizer(folder / "vocab.json"); });
  };
  const auto edited = [](std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  expect_refused("", merges, "got no valid JSON");
  expect_refused(vocab.substr(0, vocab.size() / 2), merges, "got no valid JSON");
  expect_refused("[1, 2]", merges, "got array");
  expect_refused("{}", merges, "no id is the single byte 0");
  expect_refused(edited(vocab, "\"A\": 190", "\"A\": \"190\""), merges, "got \"190\"");
  expect_refused(edited(vocab, "\"A\": 190", "\"A\": 191"), merges, "each once");
  expect_refused(edited(vocab, "\"A\": 190", "\"A\": -1"), merges, "got -1");
  expect_refused(edited(vocab, "\"A\": 190", "\"A\": 1.5"), merges, "got 1.5");
  expect_refused(edited(vocab, "\"A\"", "\"AB\""), merges, "no id is the single byte 65");
  expect_refused(edited(vocab, "\"th\"", "\"t h\""), merges, "byte characters, got 't h'");
  expect_refused(edited(vocab, "<|endoftext|>", "<|end|>"), merges, "'<|endoftext|>'");
  expect_refused(vocab, edited(merges, "t h\n", "t h e\n"), "line 2: expected two tokens");
  expect_refused(vocab, edited(merges, "t h\n", "th\n"), "line 2: expected two tokens");
  expect_refused(vocab, edited(merges, "t h\n", "t x\n"), "expected the token 'tx'");
  expect_refused(vocab, merges + "t h\n", "each pair once");
  expect_refused(vocab, std::string("\0\xff\n", 3), "expected two tokens");

  write_text(folder / "vocab.json", vocab);
  std::string windows;
  for (const char c : merges) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  write_text(folder / "merges.txt", windows);
  EXPECT_EQ(load_tokenizer(folder / "merges.txt")->encode("the thing"), (Ids{258, 264}));
}

TEST(LoadTokenizerTest, NamesWhatItExpected) {
  const TempFolder folder;
  expect_error(ErrorKind::kInput, "in this folder", [&] { load_tokenizer(folder.path()); });
  expect_error(ErrorKind::kInput, "which does not exist", [&] { load_tokenizer(folder / "no"); });
  expect_error(ErrorKind::kInput, "which does not exist", [&] { load_tokenizer(""); });
  small_tokenizer(folder)->save(folder / "saved");
  fs::rename(folder / "saved/vocab.json", folder / "vocab.json");
  expect_error(ErrorKind::kInput, "merges.txt", [&] { load_tokenizer(folder / "vocab.json"); });
}

TEST(StreamDecoderTest, NeverSplitsACharacter) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string text = "a\u00e9\u20ac\U0001f600\n";
  StreamDecoder decoder(*tokenizer);
  std::vector<std::string> parts;
  for (const std::int32_t id : tokenizer->encode(text)) {
    const std::string part = decoder.push(id);
    if (!part.empty()) parts.push_back(part);
  }
  EXPECT_EQ(parts, (std::vector<std::string>{"a", "\u00e9", "\u20ac", "\U0001f600", "\n"}));
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoderTest, PassesInvalidBytesOnAsSoonAsTheyAre) {
  const auto tokenizer = make_byte_tokenizer();
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(0xff), "\xff");
  EXPECT_EQ(decoder.push(0xe2), "");
  EXPECT_EQ(decoder.push('x'), "\xe2x");
  EXPECT_EQ(decoder.push(0xe2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push(256), "\xe2\x82<|endoftext|>");
  EXPECT_EQ(decoder.push(0xf0), "");
  EXPECT_EQ(decoder.finish(), "\xf0");

  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const std::string text = random_bytes(random, 50);
    std::string joined;
    for (const std::int32_t id : tokenizer->encode(text)) joined += decoder.push(id);
    EXPECT_EQ(joined + decoder.finish(), text);
  }
}

class Gpt2Test : public ::testing::Test {
 protected:
  static std::unique_ptr<Tokenizer> load() { return load_tokenizer(test_data_folder()); }
};

TEST_F(Gpt2Test, EncodesTheReferenceCases) {
  LLMC_REQUIRE_TEST_DATA();
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->name(), "gpt2");
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->end_of_text(), 50256);
  std::istringstream lines(read_text(test_data_folder() / "gpt2_tokenizer_cases.jsonl"));
  int cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const auto json = nlohmann::json::parse(line);
    const auto text = json["text"].get<std::string>();
    const auto ids = json["ids"].get<Ids>();
    ASSERT_EQ(tokenizer->encode(text), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
  EXPECT_EQ(cases, 400);
  expect_round_trips(*tokenizer, 8);
}

TEST_F(Gpt2Test, SurvivesEveryFileFormat) {
  LLMC_REQUIRE_TEST_DATA();
  const TempFolder folder;
  const auto tokenizer = load();
  tokenizer->save(folder / "saved");
  expect_equal(*load_tokenizer(folder / "saved"), *tokenizer);
  EXPECT_EQ(read_text(folder / "saved/merges.txt"),
            read_text(test_data_folder() / "gpt2_vocab.bpe"));
  // The merges that follow from the ids are the original ones.
  save_llmc_tokenizer(*tokenizer, folder / "gpt2_tokenizer.bin");
  const auto derived = load_tokenizer(folder.path());
  expect_equal(*derived, *tokenizer);
  derived->save(folder / "derived");
  EXPECT_EQ(read_text(folder / "derived/merges.txt"), read_text(folder / "saved/merges.txt"));
  EXPECT_EQ(read_text(folder / "derived/vocab.json"), read_text(folder / "saved/vocab.json"));

  std::string version_1 = read_text(folder / "gpt2_tokenizer.bin");
  version_1[4] = 1;
  std::memset(version_1.data() + 12, 0, 4);
  write_text(folder / "version_1.bin", version_1);
  expect_equal(*load_tokenizer(folder / "version_1.bin"), *tokenizer);
}

TEST_F(Gpt2Test, EncodesTinyshakespeare) {
  LLMC_REQUIRE_TEST_DATA();
  const auto tokenizer = load();
  const std::string text = read_text(test_data_folder() / "tinyshakespeare.txt");
  const Ids ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids), text);
}

}  // namespace
}  // namespace llmc
