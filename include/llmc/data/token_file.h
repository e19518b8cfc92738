#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "llmc/core/file.h"

namespace llmc {

/// The two layouts of a token file (docs/formats.md). Both start with 256 int32: a magic number, a
/// version and the count of tokens, the rest zero; the tokens follow, little endian.
enum class TokenFormat {
  kU16,  ///< magic 20240520, version 1, 16-bit tokens: vocabularies up to 65,536 ids
  kU32,  ///< magic 20240801, version 7, 32-bit tokens
};

/// The largest count that the header's int32 can state.
constexpr std::int64_t kMaxTokensPerFile = (std::int64_t{1} << 31) - 1;

std::int64_t bytes_per_token(TokenFormat format);
/// The smaller format that can hold every id of a vocabulary.
TokenFormat token_format_for(std::int64_t vocab_size);

/// Reads windows of a token file at any position. One thread at a time may use it.
class TokenFile {
 public:
  /// Opens the file and checks the magic, version, count and exact size. With a vocab_size above 0,
  /// every token that is read must be below it. Anything wrong is an input error that names the
  /// path.
  explicit TokenFile(const std::filesystem::path& path, std::int64_t vocab_size = 0);

  const std::filesystem::path& path() const { return reader_.path(); }
  TokenFormat format() const { return format_; }
  /// Tokens in the file.
  std::int64_t size() const { return size_; }

  /// Reads tokens [begin, begin + out.size()). A window outside the file, or a token outside the
  /// vocabulary, is an input error that states where.
  void read(std::span<std::int32_t> out, std::int64_t begin);

 private:
  FileReader reader_;
  TokenFormat format_ = TokenFormat::kU16;
  std::int64_t size_ = 0;
  std::int64_t vocab_size_ = 0;
  std::vector<std::uint16_t> narrow_;
};

/// Checksum64 of each file's size and of 2 to 16 windows of 1,024 tokens, fewer the more files
/// there are: tells apart files of one size that do not hold the same text.
std::uint64_t sample_checksum(std::span<const std::filesystem::path> files);

/// Writes a token file that appears under its name at `commit`, whole or not at all.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::filesystem::path& path, TokenFormat format);

  /// Appends tokens. Ids the format cannot hold, or more than kMaxTokensPerFile tokens in all, are
  /// input errors.
  void write(std::span<const std::int32_t> tokens);
  /// Tokens written so far.
  std::int64_t size() const { return size_; }
  void commit();

 private:
  std::filesystem::path path_;
  FileWriter writer_;
  TokenFormat format_;
  std::int64_t size_ = 0;
  std::vector<std::uint16_t> narrow_;
};

}  // namespace llmc
