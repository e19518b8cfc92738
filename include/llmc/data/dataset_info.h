#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

/// What is known of one token file beyond its tokens.
struct TokenFileInfo {
  std::string file;         ///< name without folder
  std::int64_t tokens = 0;  ///< end-of-text tokens included
  std::int64_t bytes = 0;   ///< of text, end-of-text tokens not included
  /// Least possible loss in bits per byte, where the text was drawn from a known distribution.
  std::optional<double> floor_bits_per_byte;
  std::int64_t documents = 0;  ///< that begin in it
};

/// The sidecar of a set of token files: NAME.json beside NAME_val.bin and NAME_train*.bin
/// (docs/formats.md). It is written last, so its presence says that the set is complete. Unless the
/// tokenizer is "byte", the folder NAME_tokenizer holds a copy of it.
struct DatasetInfo {
  std::string tokenizer;  ///< Tokenizer::name
  std::string tokenizer_hash;
  std::int64_t vocab_size = 0;
  std::int64_t end_of_text = 0;
  std::vector<std::string> source;  ///< the inputs as they were named
  std::vector<TokenFileInfo> files;
};

void write_dataset_info(const std::filesystem::path& path, const DatasetInfo& info);
/// An input error names what is missing or of the wrong kind.
DatasetInfo read_dataset_info(const std::filesystem::path& path);

/// The sidecar that lists a token file, or nothing if there is none beside it. Files of a data set
/// that was not finished, and those that are not what their sidecar says, are an input error.
std::optional<DatasetInfo> find_dataset_info(const std::filesystem::path& token_file);

/// What load_tokenizer takes to load the tokenizer that a token file was made with: "byte", or the
/// folder NAME_tokenizer beside the sidecar. Empty if there is neither.
std::string dataset_tokenizer(const std::filesystem::path& token_file);

/// An input error if a sidecar says that a token file was made with a tokenizer of another hash.
/// Files without a sidecar pass.
void check_tokenizer(const std::vector<std::filesystem::path>& token_files,
                     std::string_view tokenizer_hash);

/// Bytes of text that the average token of these files stands for; nothing unless a sidecar lists
/// every one of them.
std::optional<double> bytes_per_token(const std::vector<std::filesystem::path>& token_files);

/// Least possible loss in bits per byte over these files; nothing unless it is known for all.
std::optional<double> floor_bits_per_byte(const std::vector<std::filesystem::path>& token_files);

}  // namespace llmc
