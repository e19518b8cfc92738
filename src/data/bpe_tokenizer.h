#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/merge_table.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

/// The printed name of end-of-text in every vocabulary here.
constexpr std::string_view kEndOfText = "<|endoftext|>";

/// Byte-pair encoding after GPT-2's splitting.
class BpeTokenizer : public Tokenizer {
 public:
  /// `tokens` holds the bytes of each id, every single byte among them. `merges` refer to these
  /// ids. With a text in `decode_only`, encode fails with it.
  BpeTokenizer(std::vector<std::string> tokens, MergeTable merges, std::int32_t end_of_text,
               std::string decode_only = "");

  std::string name() const override;
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int32_t end_of_text() const override { return end_of_text_; }
  std::string_view token_bytes(std::int32_t id) const override;
  void encode(std::vector<std::int32_t>& ids, std::string_view text) const override;
  void save(const std::filesystem::path& folder) const override;

 private:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  using PieceCache =
      std::unordered_map<std::string, std::vector<std::int32_t>, TextHash, std::equal_to<>>;

  void encode_piece(std::vector<std::int32_t>& ids, std::string_view piece) const;

  std::vector<std::string> tokens_;
  MergeTable merges_;
  std::int32_t end_of_text_;
  std::string decode_only_;
  std::array<std::int32_t, 256> id_of_byte_{};

  // Texts repeat their words, so what a piece became is kept, within bounds.
  mutable std::mutex mutex_;
  mutable PieceCache cache_;
  mutable MergeTable::Scratch scratch_;
  mutable std::vector<std::int32_t> symbols_;
};

/// Writes vocab.json and merges.txt (gpt2_files.cpp).
void save_gpt2_files(const std::filesystem::path& folder, const std::vector<std::string>& tokens,
                     const MergeTable& merges, std::int32_t end_of_text);

/// Removes the files that Tokenizer::save of any kind left in a folder.
void remove_saved_tokenizer(const std::filesystem::path& folder);

}  // namespace llmc
