#include "llmc/data/token_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TempFolder;

std::vector<std::int32_t> random_tokens(std::size_t count, std::int32_t limit, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int32_t> draw(0, limit - 1);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = draw(random);
  return tokens;
}

void write_tokens(const fs::path& path, TokenFormat format,
                  const std::vector<std::int32_t>& tokens) {
  TokenFileWriter writer(path, format);
  writer.write(std::span(tokens).first(tokens.size() / 3));
  writer.write(std::span(tokens).subspan(tokens.size() / 3));
  EXPECT_EQ(writer.size(), static_cast<std::int64_t>(tokens.size()));
  writer.commit();
}

/// A file of 1024 header bytes that start with these words, then `body` bytes.
void write_raw(const fs::path& path, std::array<std::int32_t, 3> head, std::size_t body) {
  std::string bytes(1024 + body, '\0');
  std::memcpy(bytes.data(), head.data(), sizeof head);
  write_text(path, bytes);
}

TEST(SampleChecksum, TellsFilesApart) {
  const TempFolder folder;
  const std::vector<fs::path> files{folder / "a.bin", folder / "b.bin"};
  const auto sample_with = [&](std::vector<std::int32_t> second) {
    write_tokens(files[1], TokenFormat::kU16, second);
    return sample_checksum(files);
  };
  write_tokens(files[0], TokenFormat::kU16, random_tokens(100'003, 65536, 1));
  std::vector<std::int32_t> tokens = random_tokens(16'384, 65535, 2);
  const std::uint64_t before = sample_with(tokens);
  EXPECT_EQ(sample_with(tokens), before);
  for (const std::size_t i : {std::size_t{0}, std::size_t{5'000}, tokens.size() - 1}) {
    ++tokens[i];
    EXPECT_NE(sample_with(tokens), before) << i;
    --tokens[i];
  }
  tokens.pop_back();
  EXPECT_NE(sample_with(tokens), before);
  EXPECT_NE(sample_with({}), sample_with({0}));
  EXPECT_NE(sample_with(random_tokens(100'003, 65536, 3)),
            sample_with(random_tokens(100'003, 65536, 4)));
}

class TokenFileFormats : public ::testing::TestWithParam<TokenFormat> {};

TEST_P(TokenFileFormats, ReadsAnyWindow) {
  const TempFolder folder;
  const fs::path path = folder / "t.bin";
  const std::int32_t limit = GetParam() == TokenFormat::kU16 ? 65536 : 2'000'000'000;
  const auto tokens = random_tokens(100'003, limit, 1);
  write_tokens(path, GetParam(), tokens);
  EXPECT_EQ(fs::file_size(path),
            1024 + tokens.size() * static_cast<std::size_t>(bytes_per_token(GetParam())));
  TokenFile file(path);
  EXPECT_EQ(file.format(), GetParam());
  ASSERT_EQ(file.size(), 100'003);
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    const std::int64_t begin = random() % 100'003;
    const std::int64_t count = std::min<std::int64_t>(random() % 3000, 100'003 - begin);
    std::vector<std::int32_t> window(static_cast<std::size_t>(count));
    file.read(window, begin);
    EXPECT_TRUE(std::equal(window.begin(), window.end(), tokens.begin() + begin));
  }
  std::vector<std::int32_t> window(4);
  expect_error(ErrorKind::kInput, "4 tokens from token 100000",
               [&] { file.read(window, 100'000); });
  expect_error(ErrorKind::kInput, "4 tokens from token -1", [&] { file.read(window, -1); });
}

TEST_P(TokenFileFormats, RefusesWrongSizes) {
  const TempFolder folder;
  const fs::path path = folder / "t.bin";
  write_tokens(path, GetParam(), random_tokens(10, 50000, 3));
  const std::string good = read_text(path);
  for (const std::size_t keep : {good.size() - 1, std::size_t{1024}, std::size_t{1025}}) {
    write_text(path, good.substr(0, keep));
    expect_error(ErrorKind::kInput, "the file is truncated", [&] { TokenFile file(path); });
  }
  for (const std::size_t keep : {std::size_t{0}, std::size_t{1023}}) {
    write_text(path, good.substr(0, keep));
    expect_error(ErrorKind::kInput, "at least 1024 bytes", [&] { TokenFile file(path); });
  }
  write_text(path, good + '\0');
  expect_error(ErrorKind::kInput, "the file is too long", [&] { TokenFile file(path); });
}

TEST_P(TokenFileFormats, ChecksIdsAgainstTheVocabulary) {
  const TempFolder folder;
  const fs::path path = folder / "t.bin";
  write_tokens(path, GetParam(), {0, 256, 257, 5});
  std::vector<std::int32_t> window(2);
  TokenFile file(path, 257);
  file.read(window, 0);
  expect_error(ErrorKind::kInput, "below 257, got 257 at token 2", [&] { file.read(window, 1); });
}

TEST_P(TokenFileFormats, RefusesMoreTokensThanTheHeaderCanState) {
  const TempFolder folder;
  TokenFileWriter writer(folder / "t.bin", GetParam());
  writer.write(std::vector<std::int32_t>{1, 2, 3});
  // Address space without memory behind it: the count is refused before a token is looked at.
  const std::size_t count = static_cast<std::size_t>(kMaxTokensPerFile) - 2;
  void* const space = ::mmap(nullptr, count * sizeof(std::int32_t), PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(space, MAP_FAILED);
  expect_error(ErrorKind::kInput, "got 3 + 2147483645; write several files",
               [&] { writer.write(std::span(static_cast<const std::int32_t*>(space), count)); });
  ::munmap(space, count * sizeof(std::int32_t));
}

INSTANTIATE_TEST_SUITE_P(Formats, TokenFileFormats,
                         ::testing::Values(TokenFormat::kU16, TokenFormat::kU32),
                         [](const auto& format) {
                           return format.param == TokenFormat::kU16 ? "U16" : "U32";
                         });

TEST(TokenFileTest, EmptyFileIsValid) {
  const TempFolder folder;
  write_tokens(folder / "t.bin", TokenFormat::kU16, {});
  EXPECT_EQ(TokenFile(folder / "t.bin").size(), 0);
}

TEST(TokenFileTest, WriterRefusesIdsTheFormatCannotHold) {
  const TempFolder folder;
  TokenFileWriter narrow(folder / "a.bin", TokenFormat::kU16);
  expect_error(ErrorKind::kInput, "below 65536 in a file of 16-bit tokens, got 65536",
               [&] { narrow.write(std::vector<std::int32_t>{65536}); });
  expect_error(ErrorKind::kInput, "got -1", [&] { narrow.write(std::vector<std::int32_t>{-1}); });
  TokenFileWriter wide(folder / "b.bin", TokenFormat::kU32);
  expect_error(ErrorKind::kInput, "got -1", [&] { wide.write(std::vector<std::int32_t>{-1}); });
  EXPECT_EQ(token_format_for(65536), TokenFormat::kU16);
  EXPECT_EQ(token_format_for(65537), TokenFormat::kU32);
}

TEST(TokenFileTest, RefusesMislabelledFiles) {
  const TempFolder folder;
  const fs::path path = folder / "t.bin";
  write_raw(path, {20240326, 3, 1024}, 64);
  expect_error(ErrorKind::kInput, "a model file", [&] { TokenFile file(path); });
  write_raw(path, {20240522, 1, 4}, 8);
  expect_error(ErrorKind::kInput, "multiple-choice", [&] { TokenFile file(path); });
  write_raw(path, {20240520, 7, 4}, 8);
  expect_error(ErrorKind::kInput, "expected version 1", [&] { TokenFile file(path); });
  write_raw(path, {20240801, 1, 4}, 16);
  expect_error(ErrorKind::kInput, "expected version 7", [&] { TokenFile file(path); });
  write_raw(path, {20240520, 1, -4}, 8);
  expect_error(ErrorKind::kInput, "count of 0 or more", [&] { TokenFile file(path); });
  write_raw(path, {20240801, 7, 1}, 4);
  std::string bytes = read_text(path);
  bytes.back() = '\xff';
  write_text(path, bytes);
  std::vector<std::int32_t> window(1);
  expect_error(ErrorKind::kInput, "got 4278190080 at token 0",
               [&] { TokenFile(path).read(window, 0); });
}

TEST(TokenFileTest, RandomBytesAreRefusedOrReadWithinBounds) {
  const TempFolder folder;
  const fs::path path = folder / "t.bin";
  std::mt19937 random(4);
  for (int i = 0; i < 100; ++i) {
    std::string bytes(random() % 3000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Half of them carry a valid magic and version, so that the rest of the header is reached.
    const std::array<std::int32_t, 2> head{20240520, 1};
    if (i % 2 == 0 && bytes.size() >= 8) std::memcpy(bytes.data(), head.data(), sizeof head);
    write_text(path, bytes);
    EXPECT_THROW(TokenFile file(path), Error);
  }
}

TEST(TokenFileTest, WindowsBeyondTwoGigabytes) {
  const TempFolder folder;
  const fs::path path = folder / "t.bin";
  const std::int64_t count = kMaxTokensPerFile;
  {
    FileWriter writer(path);
    std::array<std::int32_t, 256> header{20240801, 7, static_cast<std::int32_t>(count)};
    writer.write_value(header);
    writer.seek(1024 + static_cast<std::uint64_t>(count - 2) * 4);
    writer.write_value(std::array<std::int32_t, 2>{11, 12});
    writer.commit();
  }
  TokenFile file(path);
  std::vector<std::int32_t> window(3);
  file.read(window, count - 3);
  EXPECT_EQ(window, (std::vector<std::int32_t>{0, 11, 12}));
}

}  // namespace
}  // namespace llmc
