#include "llmc/data/prepare.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "llmc/core/file.h"
#include "llmc/data/corpus.h"
#include "llmc/data/token_file.h"
#include "support/temp_folder.h"
#include "support/test_data.h"
#include "support/tiny_bpe.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TempFolder;
using testing::test_data_folder;
using Tokens = std::vector<std::int32_t>;

Tokens read_tokens(const fs::path& path) {
  TokenFile file(path);
  Tokens tokens(static_cast<std::size_t>(file.size()));
  file.read(tokens, 0);
  return tokens;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// The token stream as text, with | for end-of-text.
std::string as_text(const Tokens& tokens) {
  std::string text;
  for (const std::int32_t id : tokens) text += id == 256 ? '|' : static_cast<char>(id);
  return text;
}

class PrepareTest : public ::testing::Test {
 protected:
  PrepareTest() {
    options.out_dir = folder / "out";
    options.name = "set";
  }
  DatasetInfo run() { return prepare_dataset(options, *tokenizer).value(); }
  fs::path input(const std::string& name, const std::string& text) {
    write_text(folder / name, text);
    return folder / name;
  }
  std::string split(const std::string& text, const char* how) {
    options.inputs = {input("in.txt", text)};
    options.split = parse_document_split(how);
    run();
    return as_text(read_tokens(options.out_dir / "set_train.bin"));
  }

  TempFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  PrepareOptions options;
};

TEST_F(PrepareTest, SplitsDocuments) {
  EXPECT_EQ(split("a\n\nb\n\n\nc\n", "blank-line"), "|a\n\n|b\n\n|\nc\n");
  EXPECT_EQ(split("a\n\n", "blank-line"), "|a\n\n");
  EXPECT_EQ(split("a\n\n\n\nb", "blank-line"), "|a\n\n|\n\n|b");
  EXPECT_EQ(split("a\n\nb\r\nc", "line"), "|a|b|c");
  EXPECT_EQ(split("a\n\nb\n", "file"), "|a\n\nb\n");
  EXPECT_EQ(split("a\n\nb\n", "none"), "a\n\nb\n");
  options.inputs = {input("1.txt", "one"), input("2.txt", "two")};
  options.split = DocumentSplit::kFile;
  run();
  EXPECT_EQ(as_text(read_tokens(options.out_dir / "set_train.bin")), "|one|two");
  expect_error(ErrorKind::kConfig,
               "split: expected blank-line, line, file, delimiter or none, got 'word'",
               [] { parse_document_split("word"); });
  expect_error(ErrorKind::kConfig, "format: expected auto, text or jsonl, got 'csv'",
               [] { parse_input_format("csv"); });
}

TEST_F(PrepareTest, CutsValidationAndShards) {
  options.inputs = {input("in.txt", "0123456789abcdefghij")};
  options.val_tokens = 4;
  options.shard_tokens = 8;
  const DatasetInfo info = run();
  const auto text_of = [&](const char* name) {
    return as_text(read_tokens(options.out_dir / name));
  };
  EXPECT_EQ(text_of("set_val.bin"), "|012");
  EXPECT_EQ(text_of("set_train_000001.bin"), "3456789a");
  EXPECT_EQ(text_of("set_train_000002.bin"), "bcdefghi");
  EXPECT_EQ(text_of("set_train_000003.bin"), "j");
  EXPECT_EQ(names_in(options.out_dir),
            (std::set<std::string>{"set.json", "set_val.bin", "set_train_000001.bin",
                                   "set_train_000002.bin", "set_train_000003.bin"}));
  ASSERT_EQ(info.files.size(), 4u);
  EXPECT_EQ(info.files[0].bytes, 3);
  EXPECT_EQ(info.files[1].bytes, 8);
  EXPECT_EQ(info.files[3].tokens, 1);

  // Exactly full files leave no empty one behind, and earlier files of the name go.
  options.inputs = {input("in.txt", "0123456789a")};
  EXPECT_EQ(run().files.size(), 2u);
  EXPECT_EQ(names_in(options.out_dir),
            (std::set<std::string>{"set.json", "set_val.bin", "set_train_000001.bin"}));
  options.shard_tokens = 0;
  input("out/set_extra.bin", "not ours");
  run();
  EXPECT_EQ(names_in(options.out_dir),
            (std::set<std::string>{"set.json", "set_val.bin", "set_train.bin", "set_extra.bin"}));
}

TEST_F(PrepareTest, SidecarAnswersForItsFiles) {
  options.inputs = {input("in.txt", "0123456789\n\nabc")};
  options.split = DocumentSplit::kBlankLine;
  options.val_tokens = 5;
  run();
  const fs::path val = options.out_dir / "set_val.bin";
  const fs::path train = options.out_dir / "set_train.bin";
  const auto info = find_dataset_info(train);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->tokenizer, "byte");
  EXPECT_EQ(info->tokenizer_hash, tokenizer->hash());
  EXPECT_EQ(info->vocab_size, 257);
  EXPECT_EQ(info->end_of_text, 256);
  EXPECT_DOUBLE_EQ(bytes_per_token({val}).value(), 4.0 / 5);
  EXPECT_DOUBLE_EQ(bytes_per_token({val, train}).value(), 15.0 / 17);
  EXPECT_FALSE(floor_bits_per_byte({val}).has_value());
  check_tokenizer({val, train}, tokenizer->hash());
  expect_error(ErrorKind::kInput, "prepare the text again", [&] {
    check_tokenizer({val, train}, "0123456789abcdef");
  });

  fs::copy_file(val, options.out_dir / "other.bin");
  EXPECT_FALSE(find_dataset_info(options.out_dir / "other.bin").has_value());
  EXPECT_FALSE(bytes_per_token({val, options.out_dir / "other.bin"}).has_value());
  check_tokenizer({options.out_dir / "other.bin"}, "0123456789abcdef");
  fs::copy_file(val, options.out_dir / "set_train_7.bin");
  EXPECT_FALSE(find_dataset_info(options.out_dir / "set_train_7.bin").has_value());
  fs::copy_file(val, train, fs::copy_options::overwrite_existing);
  expect_error(ErrorKind::kInput, "run prepare again", [&] { find_dataset_info(train); });
}

TEST_F(PrepareTest, RefusesADamagedSidecar) {
  options.inputs = {input("in.txt", "text")};
  run();
  const fs::path sidecar = options.out_dir / "set.json";
  const std::string good = read_text(sidecar);
  const auto expect_refused = [&](const std::string& from, const std::string& to,
                                  const std::string& part) {
    std::string text = good;
    const std::size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    write_text(sidecar, text.replace(at, from.size(), to));
    expect_error(ErrorKind::kInput, part, [&] { read_dataset_info(sidecar); });
    expect_error(ErrorKind::kInput, part,
                 [&] { check_tokenizer({options.out_dir / "set_train.bin"}, ""); });
  };
  expect_refused("llmc dataset", "another", "llmc dataset");
  expect_refused("\"version\": 1", "\"version\": 2", "expected version 1, got 2");
  expect_refused("\"tokenizer_hash\"", "\"hash\"", "'tokenizer_hash', got none");
  expect_refused("\"vocab_size\": 257", "\"vocab_size\": \"x\"", "'vocab_size', got \"x\"");
  expect_refused("\"tokens\": 5", "\"tokens\": -5", "'tokens', got -5");
  expect_refused("\"files\"", "\"file\"", "'files'");
  expect_refused("\"file\": \"set_train.bin\"", "\"file\": 3", "'file', got 3");
  expect_refused("}", "", "llmc dataset");
  write_text(sidecar, "");
  expect_error(ErrorKind::kInput, "llmc dataset", [&] { read_dataset_info(sidecar); });
}

TEST_F(PrepareTest, CorpusKnowsItsEntropy) {
  options.corpus = "tales";
  options.bytes = 50'000;
  options.seed = 5;
  options.val_tokens = 10'000;
  const DatasetInfo info = run();
  const std::string text = as_text(read_tokens(options.out_dir / "set_val.bin")) +
                           as_text(read_tokens(options.out_dir / "set_train.bin"));
  std::string expected;
  double bits = 0;
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; bytes < 50'000; ++i) {
    const Tale tale = make_tale(5, i);
    expected += '|' + tale.text;
    bits += tale.bits;
    bytes += static_cast<std::int64_t>(tale.text.size());
  }
  EXPECT_EQ(text, expected);
  EXPECT_EQ(info.files[0].bytes + info.files[1].bytes, bytes);
  const auto all =
      floor_bits_per_byte({options.out_dir / "set_val.bin", options.out_dir / "set_train.bin"});
  EXPECT_NEAR(all.value(), bits / static_cast<double>(bytes), 1e-9);
  EXPECT_NEAR(info.files[0].floor_bits_per_byte.value(), tale_statistics().bits_per_byte(), 0.02);
}

TEST_F(PrepareTest, RefusesUnusableOptions) {
  const auto expect_refused = [&](ErrorKind kind, const std::string& part) {
    expect_error(kind, part, [&] { run(); });
    EXPECT_FALSE(fs::exists(options.out_dir / "set_train.bin"));
    EXPECT_FALSE(fs::exists(options.out_dir / ".set.partial"));
  };
  expect_refused(ErrorKind::kConfig, "got neither");
  options.corpus = "tales";
  expect_refused(ErrorKind::kConfig, "bytes: expected 1 or more");
  options.bytes = 100;
  options.split = DocumentSplit::kLine;
  expect_refused(ErrorKind::kConfig, "split: expected file or none");
  options.split = DocumentSplit::kFile;
  options.inputs = {input("in.txt", "text")};
  expect_refused(ErrorKind::kConfig, "got both");
  options.corpus = "";
  expect_refused(ErrorKind::kConfig, "bytes: expected this with a corpus only");
  options.bytes = 0;
  options.seed = 1;
  expect_refused(ErrorKind::kConfig, "seed: expected this with a corpus or val_fraction only");
  options.seed = 0;
  options.delimiter = "--";
  expect_refused(ErrorKind::kConfig, "delimiter: expected a text with split = delimiter");
  options.delimiter = "";
  options.split = DocumentSplit::kDelimiter;
  expect_refused(ErrorKind::kConfig, "delimiter: expected a text with split = delimiter");
  options.split = DocumentSplit::kFile;
  options.val_shard = true;
  expect_refused(ErrorKind::kConfig, "val_shard: expected shard_tokens");
  options.val_tokens = 3;
  expect_refused(ErrorKind::kConfig,
                 "expected one of val_tokens, val_documents, val_fraction and val_shard");
  options.val_shard = false;
  options.val_tokens = 0;
  options.val_fraction = 1;
  expect_refused(ErrorKind::kConfig, "val_fraction: expected 0 or more and below 1");
  options.val_fraction = 0.5;
  expect_refused(ErrorKind::kInput, "got 1 documents, all");
  options.split = DocumentSplit::kNone;
  expect_refused(ErrorKind::kConfig, "val_fraction, val_documents: expected a text of documents");
  options.split = DocumentSplit::kFile;
  options.val_fraction = 0;
  options.threads = -1;
  expect_refused(ErrorKind::kConfig, "threads: expected 0 to");
  options.threads = 0;
  options.val_tokens = 5;
  expect_refused(ErrorKind::kInput, "expected more than the 5 tokens of val_tokens, got 5");
  options.val_tokens = -1;
  expect_refused(ErrorKind::kConfig, "val_tokens");
  options.val_tokens = 0;
  options.shard_tokens = kMaxTokensPerFile + 1;
  expect_refused(ErrorKind::kConfig, "shard_tokens");
  options.shard_tokens = 0;
  options.name = "a/b";
  expect_refused(ErrorKind::kConfig, "got 'a/b'");
  options.name = "set";
  options.corpus = "poems";
  options.inputs = {};
  expect_refused(ErrorKind::kConfig, "got 'poems'");
  options.corpus = "";
  options.inputs = {folder / "missing.txt"};
  expect_refused(ErrorKind::kInput, "missing.txt");
  options.inputs = {input("empty.txt", "")};
  expect_refused(ErrorKind::kInput, "expected text");
}

TEST_F(PrepareTest, RefusesToReplaceWhatItDidNotWrite) {
  const auto expect_kept = [&](const fs::path& path, const std::string& part) {
    const std::string before = read_text(path);
    expect_error(ErrorKind::kInput, part, [&] { run(); });
    EXPECT_EQ(read_text(path), before);
  };
  options.out_dir = folder.path();
  options.inputs = {input("set.json", "{\"text\": \"the only copy\"}")};
  expect_kept(folder / "set.json", "an input that it would replace");
  options.inputs = {input("in.txt", "text")};
  expect_kept(folder / "set.json", "got another file");
  fs::remove(folder / "set.json");
  options.inputs = {input("set_train.bin", "text")};
  expect_kept(folder / "set_train.bin", "an input that it would replace");
}

TEST_F(PrepareTest, RefusesAnInputGivenTwice) {
  const fs::path path = input("in.txt", "text");
  fs::create_directory(folder / "sub");
  options.inputs = {path, folder / "sub" / ".." / "in.txt"};
  expect_error(ErrorKind::kInput, "got it twice", [&] { run(); });
  options.inputs = {path, folder / "gone.txt"};
  expect_error(ErrorKind::kInput, "gone.txt", [&] { run(); });
}

TEST_F(PrepareTest, AFailedRunLeavesTheEarlierFiles) {
  options.inputs = {input("in.txt", "first")};
  run();
  options.inputs = {input("in.txt", "second"), folder / "missing.txt"};
  expect_error(ErrorKind::kInput, "missing.txt", [&] { run(); });
  EXPECT_EQ(as_text(read_tokens(options.out_dir / "set_train.bin")), "|first");
  EXPECT_EQ(names_in(options.out_dir), (std::set<std::string>{"set.json", "set_train.bin"}));
}

TEST_F(PrepareTest, AKilledRunLeavesNothingThatLooksComplete) {
  options.corpus = "tales";
  options.bytes = std::int64_t{1} << 40;
  options.shard_tokens = 100'000;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prepare_dataset(options, *tokenizer, [](const PrepareProgress& progress) {
      return progress.tokens < 1'000'000 || ::kill(::getpid(), SIGKILL) != 0;
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(names_in(options.out_dir), (std::set<std::string>{".set.partial"}));
  expect_error(ErrorKind::kInput, "no file matches",
               [&] { glob_files((options.out_dir / "*.bin").string()); });
  options.bytes = 1000;
  run();
  EXPECT_EQ(names_in(options.out_dir), (std::set<std::string>{"set.json", "set_train_000001.bin"}));
}

TEST_F(PrepareTest, LeavesACopyOfItsTokenizer) {
  options.inputs = {input("in.txt", "some text")};
  run();
  const fs::path tokens = options.out_dir / "set_train.bin";
  EXPECT_EQ(dataset_tokenizer(tokens), "byte");

  tokenizer = testing::make_tiny_bpe();
  run();
  EXPECT_EQ(names_in(options.out_dir),
            (std::set<std::string>{"set.json", "set_tokenizer", "set_train.bin"}));
  const std::string copy = dataset_tokenizer(tokens);
  EXPECT_EQ(copy, (options.out_dir / "set_tokenizer").string());
  EXPECT_EQ(load_tokenizer(copy)->hash(), tokenizer->hash());

  fs::remove_all(options.out_dir / "set_tokenizer");
  EXPECT_EQ(dataset_tokenizer(tokens), "");
  fs::remove(options.out_dir / "set.json");
  EXPECT_EQ(dataset_tokenizer(tokens), "");
}

TEST_F(PrepareTest, DocumentsOfLlama3FollowABeginOfText) {
  LLMC_REQUIRE_TEST_DATA();
  tokenizer = load_tokenizer(test_data_folder() / "llama3.tiktoken");
  options.inputs = {test_data_folder() / "tinyshakespeare.txt"};
  options.split = DocumentSplit::kBlankLine;
  options.val_tokens = 32'768;
  const DatasetInfo info = run();
  EXPECT_EQ(info.files[1].tokens, 276'224);
  EXPECT_EQ(TokenFile(options.out_dir / "set_val.bin").format(), TokenFormat::kU32);
  const Tokens val = read_tokens(options.out_dir / "set_val.bin");
  EXPECT_EQ(val[0], 128'000);
  EXPECT_EQ(std::count(val.begin(), val.end(), 128'000), info.files[0].documents);
  EXPECT_EQ(info.files[0].bytes + info.files[1].bytes,
            static_cast<std::int64_t>(fs::file_size(options.inputs[0])));
}

TEST_F(PrepareTest, TinyshakespeareAsLlmcHasIt) {
  LLMC_REQUIRE_TEST_DATA();
  tokenizer = load_tokenizer(test_data_folder());
  options.inputs = {test_data_folder() / "tinyshakespeare.txt"};
  options.split = DocumentSplit::kBlankLine;
  options.val_tokens = 32'768;
  const DatasetInfo info = run();
  ASSERT_EQ(info.files.size(), 2u);
  EXPECT_EQ(info.files[0].tokens, 32'768);
  EXPECT_EQ(info.files[1].tokens, 305'260);
  EXPECT_EQ(fs::file_size(options.out_dir / "set_val.bin"), 66'560u);
  EXPECT_EQ(fs::file_size(options.out_dir / "set_train.bin"), 611'544u);
  EXPECT_EQ(info.files[0].bytes + info.files[1].bytes,
            static_cast<std::int64_t>(fs::file_size(options.inputs[0])));
  Tokens all = read_tokens(options.out_dir / "set_val.bin");
  const Tokens train = read_tokens(options.out_dir / "set_train.bin");
  all.insert(all.end(), train.begin(), train.end());
  std::erase(all, tokenizer->end_of_text());
  EXPECT_EQ(tokenizer->decode(all), read_text(options.inputs[0]));
}

}  // namespace
}  // namespace llmc
