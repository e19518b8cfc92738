#include "llmc/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "llmc/core/checksum.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little endian");

using Header = std::array<std::int32_t, 256>;

struct FormatFacts {
  TokenFormat format;
  std::int32_t magic;
  std::int32_t version;
  std::int64_t bytes;
  std::int64_t ids;  // ids are below this
};

constexpr FormatFacts kFormats[] = {
    {TokenFormat::kU16, 20240520, 1, 2, std::int64_t{1} << 16},
    {TokenFormat::kU32, 20240801, 7, 4, std::int64_t{1} << 31},
};

const FormatFacts& facts_of(TokenFormat format) {
  return format == TokenFormat::kU16 ? kFormats[0] : kFormats[1];
}

/// Says what else a file is that starts like one of llm.c's other files.
std::string_view name_of_magic(std::int32_t magic) {
  switch (magic) {
    case 20240326:
      return "a model file";
    case 20240327:
      return "a debug state file";
    case 20240328:
      return "a tokenizer file";
    case 20240522:
      return "a multiple-choice evaluation file";
    case 20240527:
      return "an optimizer state file";
    case 20240803:
      return "a Llama model file";
    default:
      return "something else";
  }
}

}  // namespace

std::int64_t bytes_per_token(TokenFormat format) {
  return facts_of(format).bytes;
}

TokenFormat token_format_for(std::int64_t vocab_size) {
  return vocab_size <= facts_of(TokenFormat::kU16).ids ? TokenFormat::kU16 : TokenFormat::kU32;
}

TokenFile::TokenFile(const std::filesystem::path& path, std::int64_t vocab_size)
    : reader_(path), vocab_size_(vocab_size) {
  if (reader_.size() < sizeof(Header)) {
    fail(ErrorKind::kInput, "token_file", path.string(), ": expected a token file, which has at ",
         "least ", sizeof(Header), " bytes, got ", reader_.size(),
         "; write token files with the prepare program");
  }
  const auto header = reader_.read_value<Header>();
  const auto facts = std::find_if(std::begin(kFormats), std::end(kFormats),
                                  [&](const FormatFacts& f) { return f.magic == header[0]; });
  if (facts == std::end(kFormats)) {
    fail(ErrorKind::kInput, "token_file", path.string(), ": expected a token file (magic ",
         kFormats[0].magic, " or ", kFormats[1].magic, "), got magic ", header[0], ", ",
         name_of_magic(header[0]), "; write token files with the prepare program");
  }
  if (header[1] != facts->version) {
    fail(ErrorKind::kInput, "token_file", path.string(), ": expected version ", facts->version,
         " for magic ", facts->magic, ", got ", header[1]);
  }
  if (header[2] < 0) {
    fail(ErrorKind::kInput, "token_file", path.string(), ": expected a token count of 0 or more, ",
         "got ", header[2], " in the header");
  }
  format_ = facts->format;
  size_ = header[2];
  const std::uint64_t expected =
      sizeof(Header) + static_cast<std::uint64_t>(size_) * static_cast<std::uint64_t>(facts->bytes);
  if (reader_.size() != expected) {
    fail(ErrorKind::kInput, "token_file", path.string(), ": expected ", expected, " bytes for the ",
         size_, " tokens that the header states, got ", reader_.size(), "; the file is ",
         reader_.size() < expected ? "truncated" : "too long");
  }
}

void TokenFile::read(std::span<std::int32_t> out, std::int64_t begin) {
  const auto count = static_cast<std::int64_t>(out.size());
  if (begin < 0 || count > size_ || begin > size_ - count) {
    fail(ErrorKind::kInput, "token_file", path().string(), ": expected a window within ", size_,
         " tokens, got ", count, " tokens from token ", begin);
  }
  reader_.seek(sizeof(Header) + static_cast<std::uint64_t>(begin) *
                                    static_cast<std::uint64_t>(facts_of(format_).bytes));
  if (format_ == TokenFormat::kU16) {
    narrow_.resize(out.size());
    reader_.read(narrow_.data(), narrow_.size() * sizeof(std::uint16_t));
    std::copy(narrow_.begin(), narrow_.end(), out.begin());
  } else {
    reader_.read(out.data(), out.size_bytes());
  }
  const std::int64_t limit = vocab_size_ > 0 ? vocab_size_ : facts_of(format_).ids;
  const auto bad =
      std::find_if(out.begin(), out.end(), [&](std::int32_t id) { return id < 0 || id >= limit; });
  if (bad != out.end()) {
    fail(ErrorKind::kInput, "token_file", path().string(), ": expected token ids below ", limit,
         ", got ", static_cast<std::uint32_t>(*bad), " at token ", begin + (bad - out.begin()),
         "; the file was made for another vocabulary");
  }
}

std::uint64_t sample_checksum(std::span<const std::filesystem::path> files) {
  constexpr std::int64_t kTokens = 1024;
  const std::int64_t windows =
      std::clamp<std::int64_t>(1024 / std::max(std::ssize(files), std::ptrdiff_t{1}), 2, 16);
  Checksum64 checksum;
  std::vector<std::int32_t> window;
  for (const auto& path : files) {
    TokenFile file(path);
    const std::int64_t size = file.size(), length = std::min(size, kTokens);
    checksum.update(&size, sizeof size);
    window.resize(static_cast<std::size_t>(length));
    for (std::int64_t i = 0; i < windows && length > 0; ++i) {
      file.read(window, (size - length) * i / (windows - 1));
      checksum.update(window.data(), window.size() * sizeof window[0]);
    }
  }
  return checksum.value();
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, TokenFormat format)
    : path_(path), writer_(path), format_(format) {
  writer_.write_value(Header{});
}

void TokenFileWriter::write(std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count > kMaxTokensPerFile - size_) {
    fail(ErrorKind::kInput, "token_file", path_.string(), ": expected at most ", kMaxTokensPerFile,
         " tokens in a file, got ", size_, " + ", count, "; write several files (shard_tokens)");
  }
  const std::int64_t limit = facts_of(format_).ids;
  for (const std::int32_t id : tokens) {
    if (id < 0 || id >= limit) {
      fail(ErrorKind::kInput, "token_file", path_.string(), ": expected token ids below ", limit,
           " in a file of ", facts_of(format_).bytes * 8, "-bit tokens, got ", id);
    }
  }
  if (format_ == TokenFormat::kU16) {
    narrow_.assign(tokens.begin(), tokens.end());
    writer_.write(narrow_.data(), narrow_.size() * sizeof(std::uint16_t));
  } else {
    writer_.write(tokens.data(), tokens.size_bytes());
  }
  size_ += count;
}

void TokenFileWriter::commit() {
  Header header{};
  header[0] = facts_of(format_).magic;
  header[1] = facts_of(format_).version;
  header[2] = static_cast<std::int32_t>(size_);
  writer_.seek(0);
  writer_.write_value(header);
  writer_.commit();
}

}  // namespace llmc
