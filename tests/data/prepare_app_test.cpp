// The program prepare, run as a user runs it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "llmc/core/file.h"
#include "llmc/data/token_file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

struct Finished {
  int status = -1;
  std::string output;  // stdout and stderr
};

/// Runs prepare with these arguments in a folder.
Finished run(const TempFolder& folder, const std::string& arguments) {
  const std::string command =
      "cd '" + folder.path().string() + "' && '" LLMC_PREPARE "' " + arguments + " 2>&1";
  Finished finished;
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    finished.output.append(buffer.data(), n);
  }
  finished.status = WEXITSTATUS(::pclose(pipe));
  return finished;
}

void expect_bad_input(const std::string& arguments, const std::string& part) {
  const TempFolder folder;
  write_text(folder / "in.txt", "some text");
  const Finished finished = run(folder, arguments);
  EXPECT_EQ(finished.status, 2) << arguments;
  EXPECT_NE(finished.output.find(part), std::string::npos) << finished.output;
  EXPECT_EQ(finished.output.find('\n'), finished.output.size() - 1) << finished.output;
  EXPECT_FALSE(fs::exists(folder / "data"));
}

TEST(PrepareAppTest, WritesTales) {
  const TempFolder folder;
  const Finished finished =
      run(folder, "--corpus tales --bytes 20000 --seed 3 --val-tokens 2000 --name t");
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_NE(finished.output.find("data/t/t_val.bin: 2000 tokens"), std::string::npos)
      << finished.output;
  EXPECT_NE(finished.output.find("bits per byte"), std::string::npos);
  EXPECT_EQ(TokenFile(folder / "data/t/t_val.bin", 257).size(), 2000);
  EXPECT_GT(TokenFile(folder / "data/t/t_train.bin", 257).size(), 18'000);
  EXPECT_TRUE(fs::exists(folder / "data/t/t.json"));
}

TEST(PrepareAppTest, TurnsFilesIntoShards) {
  const TempFolder folder;
  write_text(folder / "one.txt", "first\n\nsecond");
  write_text(folder / "two.txt", "third");
  const Finished finished =
      run(folder, "--input '*.txt' --split blank-line --shard-tokens 10 --out-dir out");
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_EQ(TokenFile(folder / "out/one_train_000001.bin").size(), 10);
  EXPECT_EQ(TokenFile(folder / "out/one_train_000002.bin").size(), 10);
  EXPECT_EQ(TokenFile(folder / "out/one_train_000003.bin").size(), 1);
}

TEST(PrepareAppTest, RefusesBadOptionsBeforeWork) {
  expect_bad_input("", "expected either input files or a corpus");
  expect_bad_input("--corpus poems", "corpus: expected tales");
  expect_bad_input("--corpus tales --bytes 1k", "--bytes");
  expect_bad_input("--corpus tales --bytes -1", "bytes");
  expect_bad_input("--corpus tales --input in.txt", "got both");
  expect_bad_input("--input missing.txt", "no file matches 'missing.txt'");
  expect_bad_input("--input in.txt --split word", "split: expected blank-line, line, file or none");
  expect_bad_input("--input in.txt --seed 4", "with a corpus only");
  expect_bad_input("--input in.txt --tokenizer nothing", "'nothing', which does not exist");
  expect_bad_input("--input in.txt --tokenizer in.txt", "in.txt");
  expect_bad_input("--input in.txt --shard-tokens 99999999999", "shard");
  expect_bad_input("--input in.txt --valtokens 4", "val");
}

TEST(PrepareAppTest, TooLittleTextFailsWhileRunning) {
  const TempFolder folder;
  write_text(folder / "in.txt", "some text");
  const Finished finished = run(folder, "--input in.txt --val-tokens 100 --out-dir out");
  EXPECT_EQ(finished.status, 1) << finished.output;
  EXPECT_NE(finished.output.find("expected more than the 100 tokens"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

}  // namespace
}  // namespace llmc
