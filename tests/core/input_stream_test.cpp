#include "core/input_stream.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "llmc/core/file.h"
#include "support/gzip.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;
using testing::gzip;

std::string read_all(InputStream& stream, std::size_t at_a_time) {
  std::string text, part(at_a_time, '\0');
  while (const std::size_t got = stream.read_some(part.data(), part.size())) {
    text.append(part, 0, got);
  }
  return text;
}

class InputStreamTest : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& bytes) {
    write_text(folder_ / name, bytes);
    return folder_ / name;
  }
  std::string read(const std::filesystem::path& path, std::size_t at_a_time = 1000) {
    InputStream stream(path);
    std::string text = read_all(stream, at_a_time);
    EXPECT_EQ(stream.consumed(), std::filesystem::file_size(path));
    return text;
  }
  void expect_refused(const std::string& name, const std::string& bytes, const std::string& part) {
    expect_error(ErrorKind::kInput, part, [&] { read(file(name, bytes)); });
    expect_error(ErrorKind::kInput, name, [&] { read(file(name, bytes)); });
  }

  testing::TempFolder folder_;
};

std::string long_text() {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i * 7919 % 1'000'003) + ' ';
  return text;
}

TEST_F(InputStreamTest, ReadsPlainAndCompressedBytes) {
  for (const std::string& text : {std::string(), std::string("a"), std::string("a\0b\xff", 4),
                                  std::string("PAR"), long_text()}) {
    EXPECT_EQ(read(file("plain.txt", text)), text);
    EXPECT_EQ(read(file("text.txt.gz", gzip(text))), text);
    EXPECT_EQ(read(file("no_suffix", gzip(text)), 1), text);
  }
  EXPECT_EQ(read(file("empty.gz", "")), "");
  EXPECT_EQ(read(file("big.txt", long_text()), std::size_t{1} << 24), long_text());
}

TEST_F(InputStreamTest, SeveralMembersAreOneText) {
  const std::string two = gzip("first ") + gzip("") + gzip("second");
  EXPECT_EQ(read(file("two.gz", two)), "first second");
  EXPECT_EQ(read(file("padded.gz", two + std::string(700'000, '\0'))), "first second");
  expect_refused("garbage.gz", two + "x", "got other bytes after it");
}

TEST_F(InputStreamTest, RefusesDamagedGzip) {
  const std::string good = gzip(long_text());
  expect_refused("cut.gz", good.substr(0, good.size() / 2), "truncated");
  expect_refused("tail.gz", good.substr(0, good.size() - 1), "truncated");
  expect_refused("head.gz", good.substr(0, 5), "truncated");
  std::string flipped = good;
  flipped[flipped.size() - 6] = static_cast<char>(flipped[flipped.size() - 6] ^ 1);
  expect_refused("crc.gz", flipped, "damaged");
  flipped = good;
  for (std::size_t i = 100; i < 200; ++i) flipped[i] = '\xff';
  expect_refused("body.gz", flipped, "damaged");
  expect_refused("no.gz", "text", "expected gzip data in a file of this name");
}

TEST_F(InputStreamTest, NamesFormatsThatItDoesNotRead) {
  expect_refused("a.zst", "\x28\xb5\x2f\xfd....", "zstd");
  expect_refused("a.parquet", "PAR1....", "parquet");
  expect_refused("a.zip", "PK\x03\x04....", "zip");
}

TEST_F(InputStreamTest, RefusesWhatIsNoRegularFile) {
  expect_error(ErrorKind::kInput, "got a folder", [&] { InputStream(folder_.path()); });
  expect_error(ErrorKind::kInput, "got a special file", [&] { InputStream("/dev/null"); });
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect_error(ErrorKind::kInput, "got a special file", [&] { InputStream(folder_ / "pipe"); });
  expect_error(ErrorKind::kInput, "missing", [&] { InputStream(folder_ / "missing"); });
}

TEST_F(InputStreamTest, ReadsTheStandardInput) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string bytes = gzip("from a pipe");
  ASSERT_EQ(::write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::close(ends[1]);
  const int kept = ::dup(STDIN_FILENO);
  ASSERT_GE(::dup2(ends[0], STDIN_FILENO), 0);
  ::close(ends[0]);
  {
    InputStream stream = InputStream::standard_input();
    EXPECT_EQ(read_all(stream, 3), "from a pipe");
    EXPECT_EQ(stream.consumed(), bytes.size());
  }
  if (kept >= 0) {
    ::dup2(kept, STDIN_FILENO);
    ::close(kept);
  }
}

}  // namespace
}  // namespace llmc
