#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "data/merge_table.h"
#include "data/text_split.h"
#include "data/token_list.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

/// The printed name of end-of-text in every vocabulary here but Llama 3's.
constexpr std::string_view kEndOfText = "<|endoftext|>";

/// What byte-pair encoding consists of.
struct BpeModel {
  /// The bytes of each id, every single byte among them; of special tokens the printed name.
  TokenList tokens;
  /// Refer to these ids.
  MergeTable merges;
  SplitPattern pattern = SplitPattern::kGpt2;
  /// A piece that is a token becomes it even where merges do not lead there.
  bool whole_pieces = false;
  /// Ids that no text encodes to, ascending; the two below are among them.
  std::vector<std::int32_t> special;
  std::int32_t begin_of_text = 0;
  std::int32_t end_of_text = 0;
  /// Why encode fails; empty: it does not.
  std::string decode_only;
};

class BpeTokenizer : public Tokenizer {
 public:
  /// Files that hold a tokenizer.
  enum class Files {
    kJson,   ///< tokenizer.json and, where they say all, vocab.json and merges.txt
    kRanks,  ///< tokenizer.tiktoken
    kLlmc,   ///< tokenizer.bin
  };

  BpeTokenizer(BpeModel model, Files files);
  ~BpeTokenizer() override;

  std::string name() const override;
  std::int64_t vocab_size() const override { return model_.tokens.size(); }
  std::int32_t end_of_text() const override { return model_.end_of_text; }
  std::int32_t begin_of_text() const override { return model_.begin_of_text; }
  std::string_view token_bytes(std::int32_t id) const override;
  void encode(std::vector<std::int32_t>& ids, std::string_view text) const override;
  void save(const std::filesystem::path& folder) const override { save_as(folder, files_); }
  /// Writes other files than it was loaded from.
  void save_as(const std::filesystem::path& folder, Files files) const;
  bool can_encode() const { return model_.decode_only.empty(); }

 private:
  struct Worker;

  void encode_piece(std::vector<std::int32_t>& ids, std::string_view piece, Worker& worker) const;
  void index_whole_pieces();

  BpeModel model_;
  Files files_;
  std::array<std::int32_t, 256> id_of_byte_{};
  TokenIndex whole_;  // pieces that become one token
  std::size_t longest_whole_ = 0;

  // What encode remembers between calls. Each call takes one that no other uses.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_;
};

/// The ids of the single bytes, special tokens aside. Returns "", or what is wrong: a byte that has
/// no id or several.
std::string find_bytes(const BpeModel& model, std::array<std::int32_t, 256>& id_of_byte);

/// Removes the files that Tokenizer::save of any kind left in a folder.
void remove_saved_tokenizer(const std::filesystem::path& folder);

// Readers and writers of files, each in the source file of that name. Writers put files that hold
// the model into a folder.

/// gpt2_files.cpp: vocab.json and merges.txt.
void save_gpt2_files(const std::filesystem::path& folder, const BpeModel& model);
/// tokenizer_json.cpp.
void save_tokenizer_json(const std::filesystem::path& path, const BpeModel& model);
/// tiktoken_file.cpp: whether a file's first line is one of a rank file.
bool is_tiktoken_file(const std::filesystem::path& path);
/// The model that is read has no special tokens yet.
BpeModel read_tiktoken_file(const std::filesystem::path& path);
/// Adds every merge of two tokens that yields a token, the lowest id first.
void add_merges_by_rank(BpeModel& model);
void save_tiktoken_file(const std::filesystem::path& path, const BpeModel& model);
/// llmc_tokenizer_file.cpp: adds the merges that follow if ids are in the order in which merges
/// were learned. If they are not, returns why.
std::string derive_merges(BpeModel& model);

}  // namespace llmc
