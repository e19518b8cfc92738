#include "data/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "data/piece_cache.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

constexpr std::int64_t kGpt2Tokens = 50257;
constexpr std::int64_t kLlama3Tokens = 128256;

bool is_special(const BpeModel& model, std::int32_t id) {
  return std::binary_search(model.special.begin(), model.special.end(), id);
}

}  // namespace

struct BpeTokenizer::Worker {
  PieceCache cache;
  MergeTable::Scratch scratch;
  std::vector<std::int32_t> symbols;
};

std::string find_bytes(const BpeModel& model, std::array<std::int32_t, 256>& id_of_byte) {
  id_of_byte.fill(-1);
  for (std::int32_t id = 0; id < model.tokens.size(); ++id) {
    const std::string_view token = model.tokens[id];
    if (token.size() != 1 || is_special(model, id)) continue;
    std::int32_t& of_byte = id_of_byte[static_cast<unsigned char>(token[0])];
    if (of_byte >= 0) return concat("id ", id, " repeats the byte of id ", of_byte);
    of_byte = id;
  }
  const auto none = std::find(id_of_byte.begin(), id_of_byte.end(), -1);
  if (none == id_of_byte.end()) return "";
  return concat("no id is the single byte ", none - id_of_byte.begin());
}

BpeTokenizer::BpeTokenizer(BpeModel model, Files files) : model_(std::move(model)), files_(files) {
  if (!model_.decode_only.empty()) return;
  const std::string wrong = find_bytes(model_, id_of_byte_);
  if (!wrong.empty()) {
    fail(ErrorKind::kInput, "tokenizer", "expected one id for every byte, got a vocabulary where ",
         wrong);
  }
  index_whole_pieces();
}

BpeTokenizer::~BpeTokenizer() = default;

/// Most pieces of a text are tokens: those that merges lead to are found without merging.
void BpeTokenizer::index_whole_pieces() {
  const TokenList& tokens = model_.tokens;
  whole_ = TokenIndex(static_cast<std::size_t>(tokens.size()));
  Worker worker;
  for (std::int32_t id = 0; id < tokens.size(); ++id) {
    if (is_special(model_, id)) continue;
    if (!model_.whole_pieces) {
      worker.symbols.clear();
      for (const char c : tokens[id]) {
        worker.symbols.push_back(id_of_byte_[static_cast<unsigned char>(c)]);
      }
      model_.merges.apply(worker.symbols, worker.scratch);
      if (worker.symbols.size() != 1 || worker.symbols[0] != id) continue;
    }
    whole_.add(tokens, id);
    longest_whole_ = std::max(longest_whole_, tokens[id].size());
  }
}

std::string BpeTokenizer::name() const {
  if (model_.pattern == SplitPattern::kLlama3) {
    return vocab_size() == kLlama3Tokens ? "llama3" : "bpe";
  }
  return vocab_size() == kGpt2Tokens ? "gpt2" : "bpe";
}

std::string_view BpeTokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail(ErrorKind::kInput, "tokenizer", "expected a token id below ", vocab_size(), ", got ", id);
  }
  return model_.tokens[id];
}

void BpeTokenizer::encode(std::vector<std::int32_t>& ids, std::string_view text) const {
  if (!model_.decode_only.empty()) {
    fail(ErrorKind::kInput, "tokenizer", "this vocabulary can only decode: ", model_.decode_only);
  }
  std::unique_ptr<Worker> worker;
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      worker = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!worker) worker = std::make_unique<Worker>();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(model_.pattern, text, at);
    encode_piece(ids, text.substr(at, end - at), *worker);
    at = end;
  }
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(worker));
}

void BpeTokenizer::encode_piece(std::vector<std::int32_t>& ids, std::string_view piece,
                                Worker& worker) const {
  const std::uint64_t hash = hash_bytes(piece);
  if (piece.size() <= longest_whole_) {
    const std::int32_t id = whole_.find(model_.tokens, piece, hash);
    if (id != TokenIndex::kNone) {
      ids.push_back(id);
      return;
    }
  }
  if (const auto known = worker.cache.find(piece, hash); !known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  auto& symbols = worker.symbols;
  symbols.clear();
  for (const char c : piece) symbols.push_back(id_of_byte_[static_cast<unsigned char>(c)]);
  model_.merges.apply(symbols, worker.scratch);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  worker.cache.add(piece, hash, symbols);
}

void BpeTokenizer::save_as(const std::filesystem::path& folder, Files files) const {
  make_folders(folder);
  remove_saved_tokenizer(folder);
  if (files == Files::kLlmc) {
    save_llmc_tokenizer(*this, folder / "tokenizer.bin");
  } else if (files == Files::kRanks) {
    save_tiktoken_file(folder / "tokenizer.tiktoken", model_);
  } else {
    const bool pair_says_all = model_.pattern == SplitPattern::kGpt2 && !model_.whole_pieces;
    if (pair_says_all) save_gpt2_files(folder, model_);
    save_tokenizer_json(folder / "tokenizer.json", model_);
  }
}

}  // namespace llmc
