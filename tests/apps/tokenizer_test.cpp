// The program tokenizer, run as a user runs it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/program.h"
#include "llmc/core/file.h"
#include "llmc/data/tokenizer.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::Outcome;
using testing::Program;
using testing::TempFolder;

Outcome run(const TempFolder& folder, const std::vector<std::string>& arguments) {
  return testing::run_app("tokenizer", arguments, folder.path().string());
}

/// With a file as standard input.
Outcome run_on(const TempFolder& folder, const std::string& file, const std::string& arguments) {
  const std::string command = "'" LLMC_APPS_DIR "/tokenizer' " + arguments + " < " + file;
  return Program("/bin/sh", {"-c", command}, folder.path().string()).wait();
}

TEST(TokenizerAppTest, TrainsOnAFolderThenEncodesAndDecodes) {
  const TempFolder folder;
  fs::create_directories(folder / "text/more");
  write_text(folder / "text/one.txt", "the thing and the other thing");
  write_text(folder / "text/more/two.txt", "the thing \u00e9\u20ac again");
  write_text(folder / "text/.hidden", "zzzzzzzz");
  write_text(folder / "text/lines.jsonl", "{\"body\": \"qqqq\", \"text\": \"zzzz\"}\n");
  const Outcome trained =
      run(folder, {"train", "--input", "text", "--field", "body", "--vocab-size", "300",
                   "--special-tokens", "<|user|>", "--threads", "2", "--out-dir", "out/tokenizer"});
  EXPECT_EQ(trained.status, 0) << trained.err;
  EXPECT_NE(trained.out.find("out/tokenizer: "), std::string::npos) << trained.out;
  EXPECT_NE(trained.out.find("fewer than the 300 asked for"), std::string::npos) << trained.out;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.json"}) {
    EXPECT_TRUE(fs::exists(folder / "out/tokenizer" / name)) << name;
  }
  const auto tokenizer = load_tokenizer(folder / "out/tokenizer");
  EXPECT_EQ(tokenizer->token_bytes(static_cast<std::int32_t>(tokenizer->vocab_size() - 1)),
            "<|user|>");
  const std::string merges = read_text(folder / "out/tokenizer/merges.txt");
  EXPECT_EQ(merges.find("z z"), std::string::npos);
  EXPECT_NE(merges.find("q q"), std::string::npos);

  const Outcome encoded = run_on(folder, "text/more/two.txt", "encode --tokenizer out/tokenizer");
  EXPECT_EQ(encoded.status, 0) << encoded.err;
  write_text(folder / "ids", encoded.out);
  const Outcome decoded = run_on(folder, "ids", "decode --tokenizer out/tokenizer");
  EXPECT_EQ(decoded.out, "the thing \u00e9\u20ac again");
  EXPECT_EQ(decoded.status, 0) << decoded.err;
}

TEST(TokenizerAppTest, RefusesBadInputBeforeWork) {
  const TempFolder folder;
  write_text(folder / "in.txt", "some text");
  const auto expect_bad = [&](const std::vector<std::string>& arguments, const std::string& part) {
    const Outcome outcome = run(folder, arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_FALSE(fs::exists(folder / "out"));
  };
  expect_bad({"learn"}, "expected train, encode or decode, got 'learn'");
  expect_bad({"train", "--out-dir", "out"}, "--input");
  expect_bad({"train", "--input", "in.txt"}, "--out-dir");
  expect_bad({"train", "--input", "no.txt", "--out-dir", "out"}, "no file matches 'no.txt'");
  expect_bad({"train", "--input", "in.txt", "--out-dir", "out", "--vocab-size", "9"},
             "--vocab-size");
  expect_bad({"train", "--input", "in.txt", "--out-dir", "out", "--special-tokens", "a b"},
             "special_tokens: expected");
  expect_bad({"train", "--input", "in.txt", "--out-dir", "out", "--format", "csv"},
             "format: expected auto, text or jsonl");
  expect_bad({"train", "--input", ".", "--out-dir", "out"}, "outside of the input folder");
  expect_bad({"encode", "--tokenizer", "in.txt"}, "in.txt");
  expect_bad({"decode"}, "--tokenizer");
  EXPECT_EQ(run(folder, {"--help"}).status, 0);
  for (const char* action : {"train", "encode", "decode"}) {
    EXPECT_NE(run(folder, {action, "--help"}).out.find("Usage: tokenizer " + std::string(action)),
              std::string::npos);
  }
}

TEST(TokenizerAppTest, FailuresWhileRunningExitWithOne) {
  const TempFolder folder;
  write_text(folder / "empty.txt", "");
  const Outcome trained = run(folder, {"train", "--input", "empty.txt", "--out-dir", "out"});
  EXPECT_EQ(trained.status, 1);
  EXPECT_NE(trained.err.find("expected text to learn from, got none"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "out"));
  write_text(folder / "ids", "65 x");
  const Outcome decoded = run_on(folder, "ids", "decode --tokenizer byte");
  EXPECT_EQ(decoded.status, 1);
  EXPECT_NE(decoded.err.find("expected token ids, got 'x'"), std::string::npos) << decoded.err;
  write_text(folder / "ids", "999");
  EXPECT_EQ(run_on(folder, "ids", "decode --tokenizer byte").status, 1);
  for (const char* action : {"encode", "decode"}) {
    const Outcome of_folder = run_on(folder, ".", action + std::string(" --tokenizer byte"));
    EXPECT_EQ(of_folder.status, 1);
    EXPECT_NE(of_folder.err.find("cannot read the standard input"), std::string::npos)
        << of_folder.err;
  }
}

}  // namespace
}  // namespace llmc
