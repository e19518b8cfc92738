#include "data/dataset_writer.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "data/bpe_tokenizer.h"
#include "data/dataset_name.h"
#include "llmc/core/error.h"
#include "llmc/core/rng.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

TokenFileSeries::Rule val_rule(const PrepareOptions& options) {
  TokenFileSeries::Rule rule{"val", 0, std::nullopt};
  if (options.val_shard) rule.first_number = 0;
  return rule;
}

TokenFileSeries::Rule train_rule(const PrepareOptions& options) {
  TokenFileSeries::Rule rule{"train", options.shard_tokens, std::nullopt};
  if (options.shard_tokens > 0) rule.first_number = 1;
  return rule;
}

/// What a document is worth within `part`, a part of its tokens. `rest` are those from the part's
/// beginning on.
EncodedDocument part_of(const EncodedDocument& document, std::span<const std::int32_t> part,
                        std::span<const std::int32_t> rest, const Tokenizer& tokenizer) {
  EncodedDocument result = document;
  const auto tokens = static_cast<std::int64_t>(part.size());
  if (tokens == document.tokens) return result;
  result.tokens = tokens;
  result.continues = document.continues || static_cast<std::int64_t>(rest.size()) < document.tokens;
  result.bits *= static_cast<double>(tokens) / static_cast<double>(document.tokens);
  result.bytes = 0;
  for (const std::int32_t id : part) {
    if (id == tokenizer.begin_of_text()) continue;
    result.bytes += static_cast<std::int64_t>(tokenizer.token_bytes(id).size());
  }
  return result;
}

}  // namespace

TokenFileSeries::TokenFileSeries(Rule rule, const fs::path& folder, const std::string& name,
                                 const Tokenizer& tokenizer, bool bits_known)
    : rule_(std::move(rule)),
      folder_(folder),
      name_(name),
      tokenizer_(tokenizer),
      bits_known_(bits_known) {}

void TokenFileSeries::append(std::span<const std::int32_t> ids, const EncodedDocument& document) {
  while (!ids.empty()) {
    if (!file_) open_next();
    const std::size_t room = rule_.shard_tokens == 0
                                 ? ids.size()
                                 : static_cast<std::size_t>(rule_.shard_tokens - file_->size());
    const auto part = ids.first(std::min(ids.size(), room));
    file_->write(part);
    const EncodedDocument here = part_of(document, part, ids, tokenizer_);
    TokenFileInfo& info = infos_.back();
    info.documents += here.continues ? 0 : 1;
    info.bytes += here.bytes;
    bits_ += here.bits;
    tokens_ += here.tokens;
    ids = ids.subspan(part.size());
    if (file_->size() == rule_.shard_tokens) close();
  }
}

void TokenFileSeries::open_next() {
  TokenFileInfo info;
  if (rule_.first_number) {
    const std::int64_t number = *rule_.first_number + static_cast<std::int64_t>(infos_.size());
    if (number > kLastShard) {
      fail(ErrorKind::kInput, "prepare", "expected at most ", kLastShard, " shards, got more; ",
           "choose more shard_tokens than ", rule_.shard_tokens);
    }
    info.file = token_shard_name(name_, rule_.part, number);
  } else {
    info.file = token_file_name(name_, rule_.part);
  }
  file_ = std::make_unique<TokenFileWriter>(folder_ / info.file,
                                            token_format_for(tokenizer_.vocab_size()));
  infos_.push_back(std::move(info));
  bits_ = 0;
}

void TokenFileSeries::close() {
  if (!file_) return;
  TokenFileInfo& info = infos_.back();
  info.tokens = file_->size();
  if (bits_known_ && info.bytes > 0) {
    info.floor_bits_per_byte = bits_ / static_cast<double>(info.bytes);
  }
  file_->commit();
  file_.reset();
}

DatasetWriter::DatasetWriter(const PrepareOptions& options, const Tokenizer& tokenizer)
    : options_(options),
      tokenizer_(tokenizer),
      partial_(options.out_dir / partial_folder_name(options.name)),
      val_tokens_(options.val_shard ? options.shard_tokens : options.val_tokens),
      val_(val_rule(options), partial_, options.name, tokenizer, !options.corpus.empty()),
      train_(train_rule(options), partial_, options.name, tokenizer, !options.corpus.empty()) {
  make_folders(partial_);
  lock_.emplace(partial_);
  for (const auto& entry : fs::directory_iterator(partial_)) fs::remove_all(entry.path());
}

DatasetWriter::~DatasetWriter() {
  if (!replacing_) remove_partial();
}

void DatasetWriter::append(const EncodedBlock& block) {
  auto ids = std::span<const std::int32_t>(block.ids);
  for (const EncodedDocument& document : block.documents) {
    const auto count = static_cast<std::size_t>(document.tokens);
    add(ids.first(count), document);
    ids = ids.subspan(count);
  }
}

void DatasetWriter::add(std::span<const std::int32_t> ids, EncodedDocument document) {
  if (!document.continues) ++documents_;
  bytes_ += document.bytes;
  if (options_.val_fraction > 0 || options_.val_documents > 0) {
    const bool is_val = options_.val_documents > 0 ? documents_ <= options_.val_documents
                                                   : drawn_for_val(documents_ - 1);
    (is_val ? val_ : train_).append(ids, document);
    return;
  }
  const std::int64_t room = std::max<std::int64_t>(0, val_tokens_ - val_.tokens());
  const auto first = ids.first(std::min(ids.size(), static_cast<std::size_t>(room)));
  const auto second = ids.subspan(first.size());
  if (!first.empty()) val_.append(first, part_of(document, first, ids, tokenizer_));
  if (!second.empty()) train_.append(second, part_of(document, second, second, tokenizer_));
}

/// Whether the document of this number belongs to the fraction; it depends on the seed alone.
bool DatasetWriter::drawn_for_val(std::int64_t document) const {
  const auto words = philox4x32(options_.seed, static_cast<std::uint64_t>(document));
  return words[0] * 0x1p-32 < options_.val_fraction;
}

DatasetInfo DatasetWriter::publish() {
  val_.close();
  train_.close();
  check_parts();
  DatasetInfo info;
  info.tokenizer = tokenizer_.name();
  info.tokenizer_hash = tokenizer_.hash();
  info.vocab_size = tokenizer_.vocab_size();
  info.end_of_text = tokenizer_.end_of_text();
  info.source = options_.corpus.empty() ? options_.inputs
                                        : std::vector<std::string>{"corpus " + options_.corpus};
  info.files = val_.infos();
  info.files.insert(info.files.end(), train_.infos().begin(), train_.infos().end());

  const std::string sidecar = sidecar_name(options_.name);
  const std::string tokenizer_folder = tokenizer_folder_name(options_.name);
  const bool has_tokenizer_files = tokenizer_.name() != make_byte_tokenizer()->name();
  if (has_tokenizer_files) tokenizer_.save(partial_ / tokenizer_folder);
  write_dataset_info(partial_ / sidecar, info);

  // All is written: what follows needs no space. Where it fails nevertheless, the hidden folder
  // stays and tells that the data set is incomplete.
  replacing_ = true;
  fs::remove(options_.out_dir / sidecar);
  remove_earlier_files();
  for (const TokenFileInfo& file : info.files) {
    fs::rename(partial_ / file.file, options_.out_dir / file.file);
  }
  if (has_tokenizer_files) place_tokenizer(tokenizer_folder);
  sync_folder(options_.out_dir);
  rename_durably(partial_ / sidecar, options_.out_dir / sidecar);
  replacing_ = false;
  return info;
}

/// Replaces an earlier tokenizer; other files in its folder stay.
void DatasetWriter::place_tokenizer(const std::string& name) const {
  const fs::path folder = options_.out_dir / name;
  make_folders(folder);
  remove_saved_tokenizer(folder);
  for (const auto& file : fs::directory_iterator(partial_ / name)) {
    fs::rename(file.path(), folder / file.path().filename());
  }
  sync_folder(folder);
}

void DatasetWriter::check_parts() const {
  if (bytes_ == 0) fail(ErrorKind::kInput, "prepare", "expected text in the inputs, got none");
  if (options_.val_fraction > 0 && (val_.tokens() == 0 || train_.tokens() == 0)) {
    fail(ErrorKind::kInput, "prepare", "expected documents both inside and outside of the ",
         options_.val_fraction, " of val_fraction, got ", documents_, " documents, all ",
         val_.tokens() == 0 ? "outside" : "inside", "; choose another seed or val_tokens");
  }
  if (train_.tokens() == 0 && options_.val_documents > 0) {
    fail(ErrorKind::kInput, "prepare", "expected more than the ", options_.val_documents,
         " documents of val_documents, got ", documents_, "; nothing would be left to train on");
  }
  if (train_.tokens() == 0) {
    fail(ErrorKind::kInput, "prepare", "expected more than the ", val_tokens_, " tokens of ",
         options_.val_shard ? "the first shard" : "val_tokens", ", got ", tokens(),
         "; nothing would be left to train on");
  }
}

void DatasetWriter::remove_partial() {
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

/// Files of this name would otherwise mix with the new ones under one pattern.
void DatasetWriter::remove_earlier_files() {
  std::vector<fs::path> earlier;
  for (const auto& entry : fs::directory_iterator(options_.out_dir)) {
    if (dataset_name_of(entry.path().filename().string()) == options_.name) {
      earlier.push_back(entry.path());
    }
  }
  for (const fs::path& path : earlier) fs::remove(path);
}

}  // namespace llmc
