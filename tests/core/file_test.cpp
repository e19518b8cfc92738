#include "llmc/core/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TempFolder;

std::string bytes_of(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 131 + i / 251);
  return bytes;
}

std::size_t entries_in(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(FileTest, ReadsBackWhatWasWrittenInAnyPieces) {
  const TempFolder folder;
  const fs::path path = folder / "a.bin";
  const std::string bytes = bytes_of(1'500'007);
  {
    FileWriter writer(path);
    std::size_t at = 0;
    for (std::size_t piece = 1; at < bytes.size(); piece = piece * 3 + 1) {
      const std::size_t n = std::min(piece, bytes.size() - at);
      writer.write(bytes.data() + at, n);
      at += n;
      EXPECT_EQ(writer.position(), at);
    }
    writer.commit();
  }
  FileReader reader(path);
  ASSERT_EQ(reader.size(), bytes.size());
  for (const std::size_t piece : {1u, 7u, 4096u, 262'144u, 300'001u}) {
    reader.seek(piece);
    std::string got(bytes.size() - piece, '\0');
    for (std::size_t at = 0; at < got.size();) {
      const std::size_t n = std::min(piece, got.size() - at);
      if (piece == 1 && at > 1000) break;
      reader.read(got.data() + at, n);
      at += n;
      EXPECT_EQ(reader.position(), piece + at);
    }
    if (piece == 1) got.resize(1001);
    EXPECT_EQ(got, bytes.substr(piece, got.size())) << "pieces of " << piece;
  }
  std::vector<char> last(bytes.size());
  reader.seek(bytes.size() - 5);
  EXPECT_EQ(reader.read_some(last.data(), last.size()), 5u);
  EXPECT_EQ(reader.read_some(last.data(), last.size()), 0u);
}

TEST(FileTest, SeekingBackFillsInAHeader) {
  const TempFolder folder;
  const fs::path path = folder / "a.bin";
  FileWriter writer(path);
  writer.write_value(std::uint32_t{0});
  writer.write("body");
  writer.seek(0);
  writer.write_value(std::uint32_t{0x01020304});
  writer.commit();
  FileReader reader(path);
  EXPECT_EQ(reader.size(), 8u);
  EXPECT_EQ(reader.read_value<std::uint32_t>(), 0x01020304u);
  EXPECT_EQ(read_text(path).substr(4), "body");
}

TEST(FileTest, TruncatedReadStatesOffsetAndCounts) {
  const TempFolder folder;
  const fs::path path = folder / "short.bin";
  write_text(path, "123456789");
  FileReader reader(path);
  reader.seek(4);
  char out[8];
  expect_error(ErrorKind::kInput, "expected 8 bytes at offset 4, got 5",
               [&] { reader.read(out, 8); });
  reader.seek(1000);
  expect_error(ErrorKind::kInput, "at offset 1000, got 0", [&] { reader.read(out, 1); });
  expect_error(ErrorKind::kInput, "expected at most 8 bytes, got 9", [&] { read_text(path, 8); });
}

TEST(FileTest, RefusesWhatIsNotARegularFile) {
  const TempFolder folder;
  expect_error(ErrorKind::kInput, "missing.bin",
               [&] { FileReader reader(folder / "missing.bin"); });
  expect_error(ErrorKind::kInput, "got a folder", [&] { FileReader reader(folder.path()); });
  expect_error(ErrorKind::kInput, "special file", [&] { FileReader reader("/dev/null"); });
  expect_error(ErrorKind::kInput, "got a folder", [&] { FileWriter writer(folder.path()); });
  expect_error(ErrorKind::kInput, "special file", [&] { FileWriter writer("/dev/null"); });
  expect_error(ErrorKind::kInput, "expected a file name", [&] { FileWriter writer(""); });
  expect_error(ErrorKind::kInput, "nowhere", [&] { FileWriter writer(folder / "nowhere/a.bin"); });
  expect_error(ErrorKind::kInput, "Is a directory", [&] { AppendFile file(folder.path()); });
}

TEST(FileTest, AWriterWithoutCommitChangesNothing) {
  const TempFolder folder;
  const fs::path path = folder / "a.txt";
  write_text(path, "old");
  {
    FileWriter writer(path);
    writer.write(bytes_of(600'000));
    EXPECT_EQ(read_text(path), "old");
  }
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(entries_in(folder.path()), 1u);
  write_text(path, "new");
  EXPECT_EQ(read_text(path), "new");
}

TEST(FileTest, MovedWriterStillCommits) {
  const TempFolder folder;
  FileWriter first(folder / "a.txt");
  first.write("text");
  FileWriter second = std::move(first);
  second.commit();
  EXPECT_EQ(read_text(folder / "a.txt"), "text");
}

TEST(FileTest, StaleTemporaryFileIsTakenOver) {
  const TempFolder folder;
  std::ofstream(folder / ".a.txt.tmp") << bytes_of(1000);
  write_text(folder / "a.txt", "fresh");
  EXPECT_EQ(read_text(folder / "a.txt"), "fresh");
  EXPECT_EQ(entries_in(folder.path()), 1u);
  expect_error(ErrorKind::kInput, "no file matches",
               [&] { glob_files((folder / "*.tmp").string()); });
}

TEST(FileTest, TwoWritersOfOneNameAreRefused) {
  const TempFolder folder;
  FileWriter first(folder / "a.txt");
  first.write("first");
  expect_error(ErrorKind::kIo, "another writer", [&] { FileWriter second(folder / "a.txt"); });
  first.commit();
  EXPECT_EQ(read_text(folder / "a.txt"), "first");
}

TEST(FileTest, WritesThroughASymbolicLink) {
  const TempFolder folder;
  write_text(folder / "real.txt", "old");
  fs::create_symlink("real.txt", folder / "link.txt");
  write_text(folder / "link.txt", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link.txt"));
  EXPECT_EQ(read_text(folder / "real.txt"), "new");
}

TEST(FileTest, FullDiskStatesWhatWasWrittenAndLeavesNoFile) {
  const TempFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 300'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(ErrorKind::kIo, "after 300000 bytes", [&] {
    FileWriter writer(folder / "big.bin");
    for (int i = 0; i < 10; ++i) writer.write(bytes_of(100'000));
    writer.commit();
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, previous);
  EXPECT_EQ(entries_in(folder.path()), 0u);
}

TEST(FileTest, AppendReachesTheFileAtOnceAndReportsAFullDevice) {
  const TempFolder folder;
  {
    AppendFile log(folder / "log.txt");
    log.append("one\n");
    EXPECT_EQ(read_text(folder / "log.txt"), "one\n");
    AppendFile moved = std::move(log);
    moved.append("two\n");
  }
  AppendFile(folder / "log.txt").append("three\n");
  EXPECT_EQ(read_text(folder / "log.txt"), "one\ntwo\nthree\n");
  if (fs::exists("/dev/full")) {
    AppendFile full("/dev/full");
    expect_error(ErrorKind::kIo, "after 0 of 5 bytes", [&] { full.append("line\n"); });
  }
}

TEST(FileTest, PositionsBeyondFourGigabytes) {
  const TempFolder folder;
  const fs::path path = folder / "sparse.bin";
  const std::uint64_t far = (std::uint64_t{5} << 30) + 3;
  {
    FileWriter writer(path);
    writer.write("begin");
    writer.seek(far);
    writer.write("end");
    EXPECT_EQ(writer.position(), far + 3);
    writer.commit();
  }
  FileReader reader(path);
  EXPECT_EQ(reader.size(), far + 3);
  reader.seek(far - 1);
  std::string tail(4, 'x');
  reader.read(tail.data(), tail.size());
  EXPECT_EQ(tail, std::string("\0end", 4));
  expect_error(ErrorKind::kInput, "expected at most 4294967296 bytes", [&] { read_text(path); });
}

TEST(FileTest, GlobSortsAndTakesRegularFilesOnly) {
  const TempFolder folder;
  make_folders(folder / "x/y");
  make_folders(folder / "z/y.bin");
  for (const char* name : {"x/b.bin", "x/a.bin", "x/c.txt", "x/.d.bin", "x/y/e.bin", "x/[1].bin"}) {
    write_text(folder / name, name);
  }
  const auto names = [&](const std::string& pattern) {
    std::vector<std::string> found;
    for (const fs::path& file : glob_files((folder / pattern).string())) {
      found.push_back(fs::relative(file, folder.path()).string());
    }
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("x/[ab].bin"), (Names{"x/a.bin", "x/b.bin"}));
  EXPECT_EQ(names("*/?.bin"), (Names{"x/a.bin", "x/b.bin"}));
  EXPECT_EQ(names("x/*/e*"), (Names{"x/y/e.bin"}));
  EXPECT_EQ(names("x/c.txt"), (Names{"x/c.txt"}));
  EXPECT_EQ(names("x/[1].bin"), (Names{"x/[1].bin"}));
  expect_error(ErrorKind::kInput, "no file matches", [&] { names("x/*.dat"); });
  expect_error(ErrorKind::kInput, "got the folder", [&] { names("x"); });
}

TEST(FileTest, FoldersAndRenames) {
  const TempFolder folder;
  make_folders(folder / "a/b");
  make_folders(folder / "a/b");
  write_text(folder / "a/b/f", "f");
  rename_durably(folder / "a/b", folder / "c");
  EXPECT_EQ(read_text(folder / "c/f"), "f");
  expect_error(ErrorKind::kInput, "cannot rename",
               [&] { rename_durably(folder / "missing", folder / "d"); });
  expect_error(ErrorKind::kIo, "cannot make the folder", [&] { make_folders(folder / "c/f/g"); });
  expect_error(ErrorKind::kIo, "cannot make the folder", [&] { make_folders(folder / "c/f"); });
}

TEST(FileTest, ExchangeSwapsNames) {
  const TempFolder folder;
  make_folders(folder / "a");
  make_folders(folder / "x/b");
  write_text(folder / "a/f", "of a");
  write_text(folder / "x/b/f", "of b");
  exchange_durably(folder / "a", folder / "x/b");
  EXPECT_EQ(read_text(folder / "a/f"), "of b");
  EXPECT_EQ(read_text(folder / "x/b/f"), "of a");
  EXPECT_EQ(entries_in(folder.path()), 2u);
  expect_error(ErrorKind::kInput, "cannot swap",
               [&] { exchange_durably(folder / "a", folder / "missing"); });
  EXPECT_EQ(read_text(folder / "a/f"), "of b");
}

TEST(FileTest, KilledWriterLeavesTheOldFile) {
  const TempFolder folder;
  const fs::path path = folder / "a.txt";
  write_text(path, "old");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    FileWriter writer(path);
    writer.write(bytes_of(600'000));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_text(path), "old");
  write_text(path, "new");
  EXPECT_EQ(read_text(path), "new");
  EXPECT_EQ(entries_in(folder.path()), 1u);
}

}  // namespace
}  // namespace llmc
