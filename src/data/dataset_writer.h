#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/encode_block.h"
#include "llmc/core/file.h"
#include "llmc/data/dataset_info.h"
#include "llmc/data/prepare.h"
#include "llmc/data/token_file.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

/// The highest number of a shard. Whoever needs more has chosen shards that are too small.
constexpr std::int64_t kLastShard = 99'999;

/// The token files of one part of a data set, validation or training, one after the other.
class TokenFileSeries {
 public:
  /// `shard_tokens`: at most so many in a file; 0: one file takes all. With it, files are numbered
  /// from `first_number`; without a number there is one file, which has none in its name.
  struct Rule {
    std::string part;
    std::int64_t shard_tokens = 0;
    std::optional<std::int64_t> first_number;
  };

  /// The references must outlive the series.
  TokenFileSeries(Rule rule, const std::filesystem::path& folder, const std::string& name,
                  const Tokenizer& tokenizer, bool bits_known);

  /// Appends the tokens of a document or of a part of one.
  void append(std::span<const std::int32_t> ids, const EncodedDocument& document);
  void close();
  std::int64_t tokens() const { return tokens_; }
  /// What the closed files hold.
  const std::vector<TokenFileInfo>& infos() const { return infos_; }

 private:
  void open_next();

  Rule rule_;
  const std::filesystem::path& folder_;
  const std::string& name_;
  const Tokenizer& tokenizer_;
  const bool bits_known_;
  std::unique_ptr<TokenFileWriter> file_;
  double bits_ = 0;  // of the open file's text
  std::vector<TokenFileInfo> infos_;
  std::int64_t tokens_ = 0;
};

/// Sorts documents into the files of a data set, which stand in a hidden folder until `publish`.
class DatasetWriter {
 public:
  DatasetWriter(const PrepareOptions& options, const Tokenizer& tokenizer);
  ~DatasetWriter();
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  void append(const EncodedBlock& block);
  std::int64_t tokens() const { return val_.tokens() + train_.tokens(); }
  /// Of text.
  std::int64_t bytes() const { return bytes_; }
  /// Puts the files in place and the sidecar last.
  DatasetInfo publish();

 private:
  void add(std::span<const std::int32_t> ids, EncodedDocument document);
  bool drawn_for_val(std::int64_t document) const;
  void check_parts() const;
  void remove_partial();
  void remove_earlier_files();
  void place_tokenizer(const std::string& name) const;

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  std::filesystem::path partial_;
  std::optional<FolderLock> lock_;
  std::int64_t val_tokens_;  // the first tokens, which go to validation
  TokenFileSeries val_;
  TokenFileSeries train_;
  std::int64_t documents_ = 0;
  std::int64_t bytes_ = 0;
  bool replacing_ = false;  // files of the data set are being put in place
};

}  // namespace llmc
