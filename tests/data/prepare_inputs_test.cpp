// Which text prepare_dataset takes from which inputs, and how it reads them.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "data/dataset_writer.h"
#include "data/text_blocks.h"
#include "llmc/core/file.h"
#include "llmc/data/prepare.h"
#include "llmc/data/token_file.h"
#include "support/gzip.h"
#include "support/temp_folder.h"
#include "support/tiny_bpe.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::gzip;
using testing::TempFolder;

class PrepareInputsTest : public ::testing::Test {
 protected:
  PrepareInputsTest() {
    options.out_dir = folder / "out";
    options.name = "set";
  }
  std::string input(const std::string& name, const std::string& text) {
    make_folders((folder / name).parent_path());
    write_text(folder / name, text);
    return (folder / name).string();
  }
  DatasetInfo run() { return prepare_dataset(options, *tokenizer).value(); }
  /// The tokens of a file as text, with | for end-of-text.
  std::string tokens_of(const std::string& file) const {
    TokenFile tokens(options.out_dir / file);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.size()));
    tokens.read(ids, 0);
    std::string text;
    for (const std::int32_t id : ids) {
      text += id == tokenizer->end_of_text() ? "|" : tokenizer->token_bytes(id);
    }
    return text;
  }
  std::string train() {
    run();
    return tokens_of("set_train.bin");
  }
  void expect_refused(ErrorKind kind, const std::string& part) {
    expect_error(kind, part, [&] { run(); });
    EXPECT_FALSE(fs::exists(options.out_dir / "set.json"));
    EXPECT_FALSE(fs::exists(options.out_dir / "set_train.bin"));
    EXPECT_FALSE(fs::exists(options.out_dir / ".set.partial"));
  }

  TempFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  PrepareOptions options;
};

/// Words and newlines of about this size, the same on every call.
std::string some_text(std::size_t bytes, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    text.append(1 + random() % 9, static_cast<char>('a' + random() % 26));
    text += random() % 40 == 0 ? "\n\n" : random() % 8 == 0 ? "\n" : " ";
  }
  return text;
}

TEST_F(PrepareInputsTest, ReadsFoldersSortedAndPatterns) {
  input("in/b.txt", "b");
  input("in/a/2.txt", "2");
  input("in/a/1.txt.gz", gzip("1"));
  input("in/a/empty.txt", "");
  input("in/c.jsonl", "{\"text\":\"c1\"}\n{\"text\":\"c2\"}");
  input("in/.hidden", "no");
  input("in/.git/x.txt", "no");
  input("z.txt", "z");
  options.inputs = {(folder / "in").string(), (folder / "z*.txt").string()};
  const DatasetInfo info = run();
  EXPECT_EQ(tokens_of("set_train.bin"), "|1|2|b|c1|c2|z");
  EXPECT_EQ(info.files[0].documents, 6);
  EXPECT_EQ(info.files[0].bytes, 8);
  EXPECT_EQ(info.source, options.inputs);
  EXPECT_EQ(read_dataset_info(options.out_dir / "set.json").source, options.inputs);
  EXPECT_EQ(read_dataset_info(options.out_dir / "set.json").files[0].documents, 6);
}

TEST_F(PrepareInputsTest, SplitsAtADelimiter) {
  options.split = DocumentSplit::kDelimiter;
  options.delimiter = "<|end|>";
  options.inputs = {input("in.txt", "one<|end|><|end|>\ntwo<|en<|end|>three\n<|end|>")};
  EXPECT_EQ(train(), "|one|\ntwo<|en|three\n");
}

TEST_F(PrepareInputsTest, TakesAFieldOfJsonLines) {
  options.field = "story";
  options.inputs = {input("in.jsonl.gz", gzip("\xEF\xBB\xBF{\"story\":\"a\\n\\nb\"}\n\n \r\n"
                                              "{\"n\":1,\"story\":\"\"}\r\n{\"story\":\"é\"}"))};
  EXPECT_EQ(train(), "|a\n\nb|é");
  options.format = InputFormat::kText;
  options.inputs = {input("in.jsonl", "{}")};
  EXPECT_EQ(train(), "|{}");
  options.format = InputFormat::kJsonLines;
  options.inputs = {input("in.txt", "{\"story\":\"s\"}")};
  EXPECT_EQ(train(), "|s");
}

TEST_F(PrepareInputsTest, NamesTheLineOfJsonThatIsWrong) {
  std::string many;
  for (int i = 1; i <= 30'000; ++i) many += "{\"text\":\"some words\",\"i\":1}\n";
  for (const int threads : {1, 3}) {
    options.threads = threads;
    options.inputs = {input("in.jsonl", many + "{\"i\":2}\n" + many + "{\n")};
    expect_refused(ErrorKind::kInput,
                   "in.jsonl: line 30001: expected a text under 'text', got nothing");
    options.inputs = {input("in.jsonl", many + "\n{\"text\":\"a\"},\n" + many)};
    expect_refused(ErrorKind::kInput, "in.jsonl: line 30002: expected the end of the line");
  }
}

TEST_F(PrepareInputsTest, FilesDoNotDependOnThreads) {
  for (int i = 0; i < 40; ++i) {
    const std::string name = "in/" + std::to_string(i) + ".txt";
    const std::string text = some_text(1 + static_cast<std::size_t>(i * i) * 700, 5);
    input(i % 3 == 0 ? name + ".gz" : name, i % 3 == 0 ? gzip(text) : text);
  }
  std::string lines;
  for (std::uint32_t i = 0; i < 3'000; ++i) {
    std::string text = some_text(200, i);
    for (char& c : text) c = c == '\n' ? ' ' : c;
    lines += "{\"text\":\"" + text + "\"}\n";
  }
  input("in/lines.jsonl", lines);
  tokenizer = testing::make_tiny_bpe();
  options.inputs = {(folder / "in").string()};
  options.split = DocumentSplit::kBlankLine;
  options.shard_tokens = 1'000'000;
  options.val_fraction = 0.2;
  options.seed = 4;
  std::vector<std::string> files[3];
  for (int threads = 1; threads <= 3; ++threads) {
    options.threads = threads;
    auto& bytes = files[threads - 1];
    for (const TokenFileInfo& file : run().files) {
      bytes.push_back(file.file + read_text(options.out_dir / file.file));
    }
    bytes.push_back(read_text(options.out_dir / "set.json"));
  }
  ASSERT_GT(files[0].size(), 5u);
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
}

/// Every split over every position of separators relative to the blocks.
TEST_F(PrepareInputsTest, BlocksDoNotShow) {
  const auto expect_documents = [&](const std::string& text, const std::string& wanted) {
    options.inputs = {input("in.txt", text)};
    EXPECT_TRUE(train() == wanted);
  };
  for (std::size_t shift = 0; shift < 4; ++shift) {
    const std::string a = some_text(kBlockBytes - 3 + shift), b = some_text(kBlockBytes * 3, 2);
    const std::string word(kBlockBytes + shift, 'x');
    options.split = DocumentSplit::kFile;
    expect_documents(a + b, "|" + a + b);
    options.split = DocumentSplit::kDelimiter;
    options.delimiter = "<|end|>";
    expect_documents(a + "<|end|>" + word + "<|end|>" + b, "|" + a + "|" + word + "|" + b);
    options.split = DocumentSplit::kBlankLine;
    options.delimiter = "";
    expect_documents(word + "\n\n\n" + word + "\n\n" + word,
                     "|" + word + "\n\n|\n" + word + "\n\n|" + word);
    options.split = DocumentSplit::kLine;
    expect_documents(word + "\r\n" + word + "\n\n" + word + "\rx",
                     "|" + word + "|" + word + "|" + word + "\rx");
  }
}

TEST_F(PrepareInputsTest, ALongDocumentHasTheTokensOfTheWhole) {
  tokenizer = testing::make_tiny_bpe();
  std::string text;
  while (text.size() < 5 * kBlockBytes) text += "the that th t h,thth\n";
  options.inputs = {input("in.txt", text)};
  run();
  std::vector<std::int32_t> wanted = {tokenizer->end_of_text()};
  tokenizer->encode(wanted, text);
  TokenFile file(options.out_dir / "set_train.bin");
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.size()));
  file.read(ids, 0);
  EXPECT_TRUE(ids == wanted);

  // Where there is no place to cut, it is cut between characters.
  text.clear();
  while (text.size() < 3 * kLongestStretch) text += "😀";
  options.inputs = {input("in.txt", text)};
  EXPECT_TRUE(train() == "|" + text);
}

TEST_F(PrepareInputsTest, KeepsInvalidBytes) {
  options.inputs = {input("in.txt", "a\xff\xfe\x80z\xe5\xad"),
                    input("b.txt", std::string("\0", 1))};
  EXPECT_EQ(train(), "|a\xff\xfe\x80z\xe5\xad|" + std::string("\0", 1));
}

TEST_F(PrepareInputsTest, DrawsDocumentsForValidation) {
  std::string lines;
  for (int i = 0; i < 5'000; ++i) lines += std::to_string(i) + "\n";
  options.inputs = {input("in.txt", lines)};
  options.split = DocumentSplit::kLine;
  options.val_fraction = 0.1;
  options.seed = 3;
  const DatasetInfo info = run();
  EXPECT_NEAR(static_cast<double>(info.files[0].documents), 500, 80);
  EXPECT_EQ(info.files[0].documents + info.files[1].documents, 5'000);
  const std::string val = tokens_of("set_val.bin"), train_text = tokens_of("set_train.bin");
  const auto documents_of = [](const std::string& text) {
    std::set<std::string> documents;
    for (std::size_t at = 1; at < text.size();) {
      const std::size_t end = std::min(text.find('|', at), text.size());
      documents.insert(text.substr(at, end - at));
      at = end + 1;
    }
    return documents;
  };
  std::set<std::string> all = documents_of(val);
  EXPECT_EQ(static_cast<std::int64_t>(all.size()), info.files[0].documents);
  all.merge(documents_of(train_text));
  EXPECT_EQ(all.size(), 5'000u);
  options.seed = 4;
  run();
  EXPECT_NE(tokens_of("set_val.bin"), val);
  options.seed = 3;
  run();
  EXPECT_EQ(tokens_of("set_val.bin"), val);
}

TEST_F(PrepareInputsTest, KeepsTheFirstDocumentsForValidation) {
  options.inputs = {input("in.txt", "one\ntwo\nthree\nfour")};
  options.split = DocumentSplit::kLine;
  options.val_documents = 2;
  run();
  EXPECT_EQ(tokens_of("set_val.bin"), "|one|two");
  EXPECT_EQ(tokens_of("set_train.bin"), "|three|four");
  options.val_documents = 4;
  options.out_dir = folder / "other";
  expect_refused(ErrorKind::kInput, "expected more than the 4 documents of val_documents, got 4");
}

TEST_F(PrepareInputsTest, KeepsTheFirstShardForValidation) {
  options.inputs = {input("in.txt", "0123456789abcde")};
  options.shard_tokens = 6;
  options.val_shard = true;
  const DatasetInfo info = run();
  ASSERT_EQ(info.files.size(), 3u);
  EXPECT_EQ(tokens_of("set_val_000000.bin"), "|01234");
  EXPECT_EQ(tokens_of("set_train_000001.bin"), "56789a");
  EXPECT_EQ(tokens_of("set_train_000002.bin"), "bcde");
  EXPECT_EQ(info.files[0].documents, 1);
  EXPECT_EQ(info.files[1].documents, 0);
  EXPECT_TRUE(find_dataset_info(options.out_dir / "set_val_000000.bin").has_value());
  options.val_shard = false;
  options.val_tokens = 3;
  run();
  EXPECT_FALSE(fs::exists(options.out_dir / "set_val_000000.bin"));
  options.val_tokens = 0;
  options.val_shard = true;
  options.shard_tokens = 16;
  options.out_dir = folder / "other";
  expect_refused(ErrorKind::kInput, "expected more than the 16 tokens of the first shard, got 16");
}

TEST_F(PrepareInputsTest, RefusesInputsThatItCannotRead) {
  options.inputs = {input("a.txt.gz", gzip(some_text(1'000'000)).substr(0, 100'000))};
  expect_refused(ErrorKind::kInput, "a.txt.gz: the gzip data is truncated");
  options.inputs = {input("a.txt", ""), input("b.txt", "")};
  expect_refused(ErrorKind::kInput, "expected text in the inputs, got none");
  options.inputs = {"/dev/null"};
  expect_refused(ErrorKind::kInput, "expected a regular file, got a special file");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  options.inputs = {(folder / "pipe").string()};
  expect_refused(ErrorKind::kInput, "expected a regular file, got a special file");
  make_folders(folder / "empty");
  options.inputs = {(folder / "empty").string()};
  expect_refused(ErrorKind::kInput, "expected files in this folder, got none");
  options.inputs = {"-", "-"};
  expect_refused(ErrorKind::kInput, "-: expected each input once, got it twice");
  options.inputs = {folder.path().string()};
  expect_refused(ErrorKind::kInput, "expected an out_dir outside of the input folder");
  options.inputs = {input("a.txt", "text")};
  if (::geteuid() == 0) return;
  ASSERT_EQ(::chmod((folder / "a.txt").c_str(), 0), 0);
  expect_refused(ErrorKind::kIo, "a.txt");
}

TEST_F(PrepareInputsTest, RefusesFoldersThatItCannotWrite) {
  options.inputs = {input("a.txt", "text")};
  options.out_dir = folder / "a.txt" / "out";
  expect_refused(ErrorKind::kIo, "cannot make the folder");
  options.out_dir = "/proc/llmc";
  expect_refused(ErrorKind::kIo, "cannot make the folder");
}

TEST_F(PrepareInputsTest, RefusesMoreShardsThanAnyoneWants) {
  TokenFileSeries series({"train", 2, kLastShard}, folder.path(), options.name, *tokenizer, false);
  series.append(std::vector<std::int32_t>{256, 1}, {2, 1, 0, false});
  EXPECT_EQ(series.infos().back().file, "set_train_099999.bin");
  expect_error(ErrorKind::kInput, "expected at most 99999 shards, got more", [&] {
    series.append(std::vector<std::int32_t>{256, 1}, {2, 1, 0, false});
  });
}

TEST_F(PrepareInputsTest, StopsWhenAsked) {
  options.inputs = {input("a.txt", some_text(3'000'000))};
  int calls = 0;
  std::vector<double> done;
  EXPECT_FALSE(prepare_dataset(options, *tokenizer, [&](const PrepareProgress& progress) {
                 done.push_back(progress.done.value());
                 return ++calls < 3;
               }).has_value());
  EXPECT_TRUE(fs::is_empty(options.out_dir));
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_LT(done.back(), 0.9);
  EXPECT_TRUE(prepare_dataset(options, *tokenizer, [&](const PrepareProgress& progress) {
                done.push_back(progress.done.value());
                return true;
              }).has_value());
  EXPECT_EQ(done.back(), 1.0);
}

TEST_F(PrepareInputsTest, OneRunAtATimeUnderAName) {
  options.inputs = {input("a.txt", some_text(1'000'000))};
  bool tried = false;
  EXPECT_TRUE(prepare_dataset(options, *tokenizer, [&](const PrepareProgress&) {
                if (!tried) expect_error(ErrorKind::kIo, "in use", [&] { run(); });
                tried = true;
                return true;
              }).has_value());
  EXPECT_TRUE(tried);
}

TEST_F(PrepareInputsTest, ASetThatWasNotFinishedIsRefused) {
  options.inputs = {input("a.txt", "text")};
  run();
  fs::remove(options.out_dir / "set.json");
  make_folders(options.out_dir / ".set.partial");
  expect_error(ErrorKind::kInput, "got files of a prepare run that was interrupted",
               [&] { find_dataset_info(options.out_dir / "set_train.bin"); });
  run();
  EXPECT_TRUE(find_dataset_info(options.out_dir / "set_train.bin").has_value());
}

}  // namespace
}  // namespace llmc
