#include "llmc/data/prepare.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <system_error>

#include "data/dataset_name.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/data/corpus.h"
#include "llmc/data/token_file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTokensBetweenReports = std::int64_t{1} << 20;

/// Cuts a stream of tokens into the files of a data set, which stand in a hidden folder until
/// `publish`.
class DatasetWriter {
 public:
  DatasetWriter(const PrepareOptions& options, const Tokenizer& tokenizer)
      : options_(options),
        tokenizer_(tokenizer),
        format_(token_format_for(tokenizer.vocab_size())),
        partial_(options.out_dir / concat(".", options.name, ".partial")) {
    make_folders(options_.out_dir);
    remove_partial();
    make_folders(partial_);
  }
  ~DatasetWriter() {
    file_.reset();
    remove_partial();
  }
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  std::int64_t tokens() const { return tokens_; }
  std::int64_t bytes() const { return bytes_; }

  /// Appends tokens whose text has this many bits, where that is known.
  void append(std::span<const std::int32_t> ids, std::optional<double> bits) {
    const auto whole = static_cast<double>(ids.size());
    while (!ids.empty()) {
      if (!file_) open_next();
      const std::size_t count =
          room_ == 0 ? ids.size()
                     : std::min(ids.size(), static_cast<std::size_t>(room_ - file_->size()));
      const auto part = ids.first(count);
      file_->write(part);
      bits_ += bits.value_or(0) * static_cast<double>(count) / whole;
      for (const std::int32_t id : part) {
        if (id == tokenizer_.end_of_text()) continue;
        infos_.back().bytes += static_cast<std::int64_t>(tokenizer_.token_bytes(id).size());
      }
      tokens_ += static_cast<std::int64_t>(count);
      ids = ids.subspan(count);
      if (room_ > 0 && file_->size() == room_) close(bits.has_value());
    }
    has_bits_ = bits.has_value();
  }
  void count_text(std::int64_t bytes) { bytes_ += bytes; }

  /// Puts the files in place and the sidecar last.
  DatasetInfo publish() {
    if (file_) close(has_bits_);
    if (tokens_ <= options_.val_tokens) {
      fail(ErrorKind::kInput, "prepare", "expected more than the ", options_.val_tokens,
           " tokens of val_tokens, got ", tokens_, "; nothing would be left to train on");
    }
    const fs::path sidecar = options_.out_dir / sidecar_name(options_.name);
    std::error_code ignored;
    fs::remove(sidecar, ignored);
    remove_earlier_files();
    for (const TokenFileInfo& info : infos_) {
      rename_durably(partial_ / info.file, options_.out_dir / info.file);
    }
    if (tokenizer_.name() != make_byte_tokenizer()->name()) {
      tokenizer_.save(options_.out_dir / tokenizer_folder_name(options_.name));
    }
    DatasetInfo info{tokenizer_.name(), tokenizer_.hash(), tokenizer_.vocab_size(),
                     tokenizer_.end_of_text(), infos_};
    write_dataset_info(sidecar, info);
    return info;
  }

 private:
  void open_next() {
    TokenFileInfo info;
    if (infos_.empty() && options_.val_tokens > 0) {
      info.file = val_file_name(options_.name);
      room_ = options_.val_tokens;
    } else {
      info.file = options_.shard_tokens > 0 ? train_shard_name(options_.name, ++shards_)
                                            : train_file_name(options_.name);
      room_ = options_.shard_tokens;
    }
    file_ = std::make_unique<TokenFileWriter>(partial_ / info.file, format_);
    infos_.push_back(std::move(info));
    bits_ = 0;
  }

  void close(bool bits_known) {
    TokenFileInfo& info = infos_.back();
    info.tokens = file_->size();
    if (bits_known && info.bytes > 0) {
      info.floor_bits_per_byte = bits_ / static_cast<double>(info.bytes);
    }
    file_->commit();
    file_.reset();
  }

  void remove_partial() {
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
  }

  /// Files of this name would otherwise mix with the new ones under one pattern.
  void remove_earlier_files() {
    std::vector<fs::path> earlier;
    for (const auto& entry : fs::directory_iterator(options_.out_dir)) {
      if (dataset_name_of(entry.path().filename().string()) == options_.name) {
        earlier.push_back(entry.path());
      }
    }
    for (const fs::path& path : earlier) fs::remove(path);
  }

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  TokenFormat format_;
  fs::path partial_;
  std::unique_ptr<TokenFileWriter> file_;
  std::int64_t room_ = 0;  // tokens of the open file; 0: no limit
  std::int64_t shards_ = 0;
  std::vector<TokenFileInfo> infos_;
  double bits_ = 0;  // of the open file's text
  bool has_bits_ = false;
  std::int64_t tokens_ = 0;
  std::int64_t bytes_ = 0;
};

/// Calls `each` with every document of a text.
template <class Each>
void split_documents(std::string_view text, DocumentSplit split, Each each) {
  if (split == DocumentSplit::kFile || split == DocumentSplit::kNone) return each(text);
  const std::string_view separator = split == DocumentSplit::kLine ? "\n" : "\n\n";
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t found = text.find(separator, at);
    const std::size_t end = std::min(found, text.size());
    if (split == DocumentSplit::kLine) {
      std::string_view line = text.substr(at, end - at);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) each(line);
    } else {
      const std::size_t with_separator = found == text.npos ? end : end + separator.size();
      each(text.substr(at, with_separator - at));
    }
    if (found == text.npos) return;
    at = end + separator.size();
  }
}

}  // namespace

DocumentSplit parse_document_split(std::string_view name) {
  if (name == "blank-line") return DocumentSplit::kBlankLine;
  if (name == "line") return DocumentSplit::kLine;
  if (name == "file") return DocumentSplit::kFile;
  if (name == "none") return DocumentSplit::kNone;
  fail(ErrorKind::kConfig, "prepare", "split: expected blank-line, line, file or none, got '", name,
       "'");
}

void check_prepare_options(const PrepareOptions& options) {
  const auto require = [](bool holds, const auto&... message) {
    if (!holds) fail(ErrorKind::kConfig, "prepare", message...);
  };
  require(options.inputs.empty() != options.corpus.empty(),
          "expected either input files or a corpus, got ",
          options.inputs.empty() ? "neither" : "both");
  require(options.corpus.empty() || options.corpus == "tales",
          "corpus: expected tales, the only one there is, got '", options.corpus, "'");
  require(options.corpus.empty() || options.bytes >= 1, "bytes: expected 1 or more, got ",
          options.bytes);
  require(!options.corpus.empty() || (options.bytes == 0 && options.seed == 0),
          "bytes, seed: expected these with a corpus only, got input files");
  require(options.corpus.empty() || options.split == DocumentSplit::kFile ||
              options.split == DocumentSplit::kNone,
          "split: expected file or none with a corpus, whose tales are documents already");
  require(options.val_tokens >= 0, "val_tokens: expected 0 or more, got ", options.val_tokens);
  require(options.shard_tokens >= 0 && options.shard_tokens <= kMaxTokensPerFile,
          "shard_tokens: expected 0 to ", kMaxTokensPerFile, ", got ", options.shard_tokens);
  require(!options.name.empty() && options.name.find('/') == std::string::npos,
          "name: expected the beginning of file names, got '", options.name, "'");
}

void check_prepare_files(const PrepareOptions& options) {
  const fs::path sidecar = options.out_dir / sidecar_name(options.name);
  std::error_code ignored;
  std::vector<fs::path> seen;
  for (const fs::path& path : options.inputs) {
    FileReader readable(path);
    const fs::path whole = fs::weakly_canonical(path, ignored);
    if (std::find(seen.begin(), seen.end(), whole) != seen.end()) {
      fail(ErrorKind::kInput, "prepare", path.string(), ": expected each input once, got it twice");
    }
    seen.push_back(whole);
    const bool replaced = dataset_name_of(path.filename().string()) == options.name &&
                          fs::equivalent(path.parent_path() / ".", options.out_dir, ignored);
    if (replaced || fs::equivalent(path, sidecar, ignored)) {
      fail(ErrorKind::kInput, "prepare", path.string(),
           ": expected a name that the data set does not take, got an input that it would replace; "
           "choose another name or out_dir");
    }
  }
  if (!fs::exists(sidecar, ignored)) return;
  try {
    read_dataset_info(sidecar);
  } catch (const Error&) {
    fail(ErrorKind::kInput, "prepare", sidecar.string(),
         ": expected a free name or the sidecar of a data set to replace, got another file; move "
         "it away or choose another name or out_dir");
  }
}

DatasetInfo prepare_dataset(
    const PrepareOptions& options, const Tokenizer& tokenizer,
    const std::function<void(std::int64_t tokens, std::int64_t bytes)>& on_progress) {
  check_prepare_options(options);
  check_prepare_files(options);
  DatasetWriter writer(options, tokenizer);
  std::vector<std::int32_t> ids;
  std::int64_t reported = 0;
  const auto add_document = [&](std::string_view text, std::optional<double> bits) {
    ids.clear();
    if (options.split != DocumentSplit::kNone) ids.push_back(tokenizer.end_of_text());
    tokenizer.encode(ids, text);
    writer.append(ids, bits);
    writer.count_text(static_cast<std::int64_t>(text.size()));
    if (on_progress && writer.tokens() - reported >= kTokensBetweenReports) {
      reported = writer.tokens();
      on_progress(writer.tokens(), writer.bytes());
    }
  };
  if (!options.corpus.empty()) {
    for (std::int64_t i = 0; writer.bytes() < options.bytes; ++i) {
      const Tale tale = make_tale(options.seed, i);
      add_document(tale.text, tale.bits);
    }
  }
  for (const fs::path& path : options.inputs) {
    const std::string text = read_text(path);
    split_documents(text, options.split,
                    [&](std::string_view document) { add_document(document, std::nullopt); });
  }
  if (writer.bytes() == 0) {
    fail(ErrorKind::kInput, "prepare", "expected text in the input files, got none");
  }
  return writer.publish();
}

}  // namespace llmc
