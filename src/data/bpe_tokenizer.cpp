#include "data/bpe_tokenizer.h"

#include <utility>

#include "data/gpt2_split.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

constexpr std::size_t kLongestCachedPiece = 64;  // bytes
constexpr std::size_t kCachedPieces = std::size_t{1} << 16;
constexpr std::int64_t kGpt2Tokens = 50257;

}  // namespace

BpeTokenizer::BpeTokenizer(std::vector<std::string> tokens, MergeTable merges,
                           std::int32_t end_of_text, std::string decode_only)
    : tokens_(std::move(tokens)),
      merges_(std::move(merges)),
      end_of_text_(end_of_text),
      decode_only_(std::move(decode_only)) {
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].size() == 1 && static_cast<std::int32_t>(id) != end_of_text_) {
      id_of_byte_[static_cast<unsigned char>(tokens_[id][0])] = static_cast<std::int32_t>(id);
    }
  }
}

std::string BpeTokenizer::name() const {
  return vocab_size() == kGpt2Tokens ? "gpt2" : "bpe";
}

std::string_view BpeTokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail(ErrorKind::kInput, "tokenizer", "expected a token id below ", vocab_size(), ", got ", id);
  }
  return tokens_[static_cast<std::size_t>(id)];
}

void BpeTokenizer::encode(std::vector<std::int32_t>& ids, std::string_view text) const {
  if (!decode_only_.empty()) {
    fail(ErrorKind::kInput, "tokenizer", "this vocabulary can only decode: ", decode_only_);
  }
  std::lock_guard lock(mutex_);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = gpt2_piece_end(text, at);
    encode_piece(ids, text.substr(at, end - at));
    at = end;
  }
}

void BpeTokenizer::encode_piece(std::vector<std::int32_t>& ids, std::string_view piece) const {
  if (const auto found = cache_.find(piece); found != cache_.end()) {
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return;
  }
  symbols_.clear();
  for (const char c : piece) {
    symbols_.push_back(id_of_byte_[static_cast<unsigned char>(c)]);
  }
  merges_.apply(symbols_, scratch_);
  ids.insert(ids.end(), symbols_.begin(), symbols_.end());
  if (piece.size() > kLongestCachedPiece) return;
  if (cache_.size() >= kCachedPieces) cache_.clear();
  cache_.emplace(piece, symbols_);
}

void BpeTokenizer::save(const std::filesystem::path& folder) const {
  make_folders(folder);
  remove_saved_tokenizer(folder);
  if (decode_only_.empty()) {
    save_gpt2_files(folder, tokens_, merges_, end_of_text_);
  } else {
    save_llmc_tokenizer(*this, folder / "tokenizer.bin");
  }
}

}  // namespace llmc
