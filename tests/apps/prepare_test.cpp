// The program prepare, run as a user runs it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <algorithm>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "apps/program.h"
#include "llmc/core/file.h"
#include "llmc/data/token_file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::Outcome;
using testing::Program;
using testing::TempFolder;

Outcome run(const TempFolder& folder, const std::vector<std::string>& arguments) {
  return testing::run_app("prepare", arguments, folder.path().string());
}

void expect_bad_input(const std::vector<std::string>& arguments, const std::string& part) {
  const TempFolder folder;
  write_text(folder / "in.txt", "some text");
  const Outcome outcome = run(folder, arguments);
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_FALSE(fs::exists(folder / "data"));
}

TEST(PrepareAppTest, WritesTales) {
  const TempFolder folder;
  const Outcome outcome = run(folder, {"--corpus", "tales", "--bytes", "20000", "--seed", "3",
                                       "--val-tokens", "2000", "--name", "t"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("data/t/t_val.bin: 2000 tokens"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("bits per byte"), std::string::npos);
  EXPECT_EQ(TokenFile(folder / "data/t/t_val.bin", 257).size(), 2000);
  EXPECT_GT(TokenFile(folder / "data/t/t_train.bin", 257).size(), 18'000);
  EXPECT_TRUE(fs::exists(folder / "data/t/t.json"));
}

TEST(PrepareAppTest, TurnsFilesIntoShards) {
  const TempFolder folder;
  write_text(folder / "one.txt", "first\n\nsecond");
  write_text(folder / "two.txt", "third");
  const Outcome outcome = run(folder, {"--input", "*.txt", "--split", "blank-line",
                                       "--shard-tokens", "10", "--out-dir", "out"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(TokenFile(folder / "out/one_train_000001.bin").size(), 10);
  EXPECT_EQ(TokenFile(folder / "out/one_train_000002.bin").size(), 10);
  EXPECT_EQ(TokenFile(folder / "out/one_train_000003.bin").size(), 1);
}

TEST(PrepareAppTest, RefusesBadOptionsBeforeWork) {
  expect_bad_input({}, "expected either input files or a corpus");
  expect_bad_input({"--corpus", "poems"}, "corpus: expected tales");
  expect_bad_input({"--corpus", "tales", "--bytes", "1k"}, "--bytes");
  expect_bad_input({"--corpus", "tales", "--bytes", "-1"}, "bytes");
  expect_bad_input({"--corpus", "tales", "--input", "in.txt"}, "got both");
  expect_bad_input({"--input", "missing.txt"}, "no file matches 'missing.txt'");
  expect_bad_input({"--input", "in.txt", "--split", "word"},
                   "split: expected blank-line, line, file, delimiter or none");
  expect_bad_input({"--input", "in.txt", "--seed", "4"},
                   "seed: expected this with a corpus or val_fraction only");
  expect_bad_input({"--input", "in.txt", "--tokenizer", "nothing"},
                   "'nothing', which does not exist");
  expect_bad_input({"--input", "in.txt", "--tokenizer", "in.txt"}, "in.txt");
  expect_bad_input({"--input", "in.txt", "--shard-tokens", "99999999999"}, "shard");
  expect_bad_input({"--input", "in.txt", "--valtokens", "4"}, "val");
}

TEST(PrepareAppTest, TooLittleTextFailsWhileRunning) {
  const TempFolder folder;
  write_text(folder / "in.txt", "some text");
  const Outcome outcome =
      run(folder, {"--input", "in.txt", "--val-tokens", "100", "--out-dir", "out"});
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("expected more than the 100 tokens"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

Outcome run_shell(const TempFolder& folder, const std::string& line) {
  const std::string named = "PATH=" LLMC_APPS_DIR ":$PATH; ";
  return Program("/bin/sh", {"-c", named + line}, folder.path().string()).wait();
}

TEST(PrepareAppTest, ReadsTheStandardInput) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", "{\"text\":\"one\"}\n{\"text\":\"two\"}\n");
  const Outcome outcome =
      run_shell(folder, "gzip < in.jsonl | prepare --input - --format jsonl --name piped");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(TokenFile(folder / "data/piped/piped_train.bin").size(), 8);
  EXPECT_EQ(run_shell(folder, "prepare --input - </dev/null").status, 1);
}

TEST(PrepareAppTest, WritesMultipleChoiceExamples) {
  const TempFolder folder;
  const std::string line = R"({"ctx":"a","endings":["b","c","d","e"],"label":0})";
  write_text(folder / "quiz.jsonl", line + "\n" + line + "\n");
  const Outcome outcome = run(folder, {"--choices", "quiz.jsonl"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "data/quiz/quiz.bin: 2 examples\n");
  EXPECT_EQ(run(folder, {"--choices", "quiz.jsonl", "--corpus", "tales"}).status, 2);
  EXPECT_EQ(run(folder, {"--choices", "quiz.jsonl", "--val-tokens", "4"}).status, 2);
}

TEST(PrepareAppTest, AFullDiskLeavesNothing) {
  const TempFolder folder;
  write_text(folder / "in.txt", std::string(3'000'000, 'x'));
  const Outcome outcome = run_shell(folder, "ulimit -f 2000; prepare --input in.txt --out-dir out");
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("cannot write"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(PrepareAppTest, AFullDiskLeavesTheEarlierDataSet) {
  const TempFolder folder;
  write_text(folder / "in.txt", "a few words");
  EXPECT_EQ(run(folder, {"--input", "in.txt", "--out-dir", "out"}).status, 0);
  const std::string sidecar = read_text(folder / "out/in.json");
  const std::string tokens = read_text(folder / "out/in_train.bin");
  // The tokens fit, the tokenizer does not.
  const Outcome outcome = run_shell(folder,
                                    "ulimit -f 8; prepare --input in.txt --out-dir out "
                                    "--tokenizer " LLMC_GOLDEN_DIR "/tokenizers/small_gpt2.json");
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("File too large"), std::string::npos) << outcome.err;
  EXPECT_EQ(read_text(folder / "out/in.json"), sidecar);
  EXPECT_EQ(read_text(folder / "out/in_train.bin"), tokens);
  EXPECT_FALSE(fs::exists(folder / "out/in_tokenizer"));
}

TEST(PrepareAppTest, ALostOutputIsAnError) {
  const TempFolder folder;
  write_text(folder / "in.txt", "text");
  const Outcome outcome = run_shell(folder, "prepare --input in.txt --out-dir out > /dev/full");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err, "prepare: cannot write to the standard output\n");
}

TEST(PrepareAppTest, ALoopOfLinksIsRefused) {
  const TempFolder folder;
  fs::create_symlink("loop.txt", folder / "loop.txt");
  const Outcome outcome = run(folder, {"--input", "loop.txt"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err.rfind("prepare: [file] ", 0), 0u) << outcome.err;
}

TEST(PrepareAppTest, ASignalStopsAndCleansUp) {
  const TempFolder folder;
  Program program(LLMC_APPS_DIR "/prepare",
                  {"--corpus", "tales", "--bytes", "9000000000000", "--out-dir", "out"},
                  folder.path().string());
  while (!fs::exists(folder / "out/.tales.partial/.tales_train.bin.tmp")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  program.send(SIGINT);
  EXPECT_EQ(program.wait().status, 128 + SIGINT);
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(PrepareAppTest, ASignalStopsWhereTheInputStalls) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  // The pipe stays open for writing too, in the middle of a line.
  const std::string script = "exec 3<>pipe; printf '{\"text\":' >&3; exec " LLMC_APPS_DIR
                             "/prepare --input - --format jsonl --out-dir out <&3";
  Program program("/bin/sh", {"-c", script}, folder.path().string());
  while (!fs::exists(folder / "out/.stdin.partial")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  program.send(SIGTERM);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

/// The bound of prepare_dataset (16 MiB and 8 MiB a thread), and what the program itself takes.
TEST(PrepareAppTest, MemoryIsBounded) {
#ifdef LLMC_TEST_SANITIZED
  GTEST_SKIP() << "sanitizers keep what was freed";
#endif
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const TempFolder folder;
  // A program's peak counts from the fork on, so this process is in it too.
  const std::int64_t program = std::max(8 * kMiB, run(folder, {"--help"}).peak_memory + 2 * kMiB);
  // Each file alone is larger than the bound: documents of any length, and one that has no place
  // to cut it.
  const auto write = [&](const char* name, std::string text) {
    while (static_cast<std::int64_t>(text.size()) < kMiB) text += text;
    FileWriter file(folder / name);
    for (int i = 0; i < 60; ++i) file.write(text);
    file.commit();
  };
  write("words.txt", "some more words\n");
  write("solid.txt", "x");
  const auto expect_bounded = [&](const char* input, const char* split, int threads) {
    const Outcome outcome = run(folder, {"--input", input, "--split", split, "--threads",
                                         std::to_string(threads), "--out-dir", "out"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_LT(outcome.peak_memory, program + (16 + 8 * threads) * kMiB)
        << input << ", " << threads << " threads: " << outcome.peak_memory / kMiB << " MiB";
  };
  expect_bounded("words.txt", "file", 1);
  expect_bounded("words.txt", "line", 3);
  expect_bounded("solid.txt", "file", 3);
}

}  // namespace
}  // namespace llmc
