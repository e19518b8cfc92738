#include "llmc/data/tokenizer_trainer.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "data/bpe_tokenizer.h"
#include "data/byte_characters.h"
#include "data/merge_learner.h"
#include "data/piece_counts.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

constexpr std::int64_t kBytes = 256;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;
constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

void check(const TokenizerTrainerOptions& options) {
  std::vector<std::string> special = options.special_tokens;
  special.emplace_back(kEndOfText);
  for (const std::string& token : special) {
    const bool printable =
        std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; });
    if (!printable || token.size() < 2) {
      fail(ErrorKind::kConfig, "tokenizer",
           "special_tokens: expected two or more printable characters of ASCII, got '", token, "'");
    }
  }
  std::sort(special.begin(), special.end());
  const auto twice = std::adjacent_find(special.begin(), special.end());
  if (twice != special.end()) {
    fail(ErrorKind::kConfig, "tokenizer", "special_tokens: expected each once beside ", kEndOfText,
         ", got '", *twice, "' again");
  }
  const std::int64_t least = kBytes + static_cast<std::int64_t>(special.size());
  if (options.vocab_size < least || options.vocab_size > kMostTokens) {
    fail(ErrorKind::kConfig, "tokenizer", "vocab_size: expected ", least,
         " (bytes and special tokens) to ", kMostTokens, ", got ", options.vocab_size);
  }
  if (options.min_frequency < 1) {
    fail(ErrorKind::kConfig, "tokenizer", "min_frequency: expected at least 1, got ",
         options.min_frequency);
  }
  if (options.threads < 0) {
    fail(ErrorKind::kConfig, "tokenizer", "threads: expected at least 0, got ", options.threads);
  }
}

int threads_of(const TokenizerTrainerOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void count_pieces(PieceCounts& counts, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(SplitPattern::kGpt2, text, at);
    counts.add(text.substr(at, end - at));
    at = end;
  }
}

/// Reads files one after the other.
class BlockReader {
 public:
  BlockReader(std::vector<std::filesystem::path> files, std::function<void(std::int64_t)> progress)
      : files_(std::move(files)), progress_(std::move(progress)) {}

  bool next(std::string& text) {
    while (!file_ || file_->position() == file_->size()) {
      if (next_file_ == files_.size()) return false;
      file_.emplace(files_[next_file_++]);
    }
    // What the last cut left over, which is nothing at the end of a file.
    text.swap(rest_);
    rest_.clear();
    do {
      const std::size_t had = text.size();
      text.resize(had + kBlockBytes);
      text.resize(had + file_->read_some(text.data() + had, kBlockBytes));
      bytes_ += static_cast<std::int64_t>(text.size() - had);
      if (text.size() == had) {
        fail(ErrorKind::kInput, "tokenizer", file_->path().string(), ": expected ", file_->size(),
             " bytes, got ", file_->position(), "; the file became shorter");
      }
      if (file_->position() == file_->size()) break;
    } while (!cut(text));
    if (progress_) progress_(bytes_);
    return true;
  }

 private:
  /// Keeps what follows the first place to cut in the last part of a text; false if there is none.
  bool cut(std::string& text) {
    const std::size_t from = text.size() - std::min(text.size(), kBlockBytes / 16);
    const std::size_t at = find_cut(text, from);
    if (at == text.size()) return false;
    rest_ = text.substr(at);
    text.resize(at);
    return true;
  }

  std::vector<std::filesystem::path> files_;
  std::function<void(std::int64_t)> progress_;
  std::size_t next_file_ = 0;
  std::optional<FileReader> file_;
  std::string rest_;
  std::int64_t bytes_ = 0;
};

}  // namespace

struct TokenizerTrainer::Impl {
  TokenizerTrainerOptions options;
  PieceCounts counts;
  std::int64_t bytes = 0;
};

TokenizerTrainer::TokenizerTrainer(TokenizerTrainerOptions options)
    : impl_(std::make_unique<Impl>()) {
  check(options);
  impl_->options = std::move(options);
}

TokenizerTrainer::~TokenizerTrainer() = default;
TokenizerTrainer::TokenizerTrainer(TokenizerTrainer&&) noexcept = default;
TokenizerTrainer& TokenizerTrainer::operator=(TokenizerTrainer&&) noexcept = default;

std::int64_t TokenizerTrainer::bytes() const {
  return impl_->bytes;
}

std::int64_t TokenizerTrainer::pieces() const {
  return impl_->counts.size();
}

void TokenizerTrainer::add(std::string_view text) {
  count_pieces(impl_->counts, text);
  impl_->bytes += static_cast<std::int64_t>(text.size());
}

void TokenizerTrainer::add_all(const std::function<bool(std::string&)>& next) {
  std::mutex mutex;
  std::exception_ptr error;
  bool more = true;
  const auto work = [&] {
    PieceCounts counts;
    std::int64_t bytes = 0;
    try {
      for (std::string text;;) {
        {
          std::lock_guard lock(mutex);
          more = more && !error && next(text);
          if (!more) break;
        }
        bytes += static_cast<std::int64_t>(text.size());
        count_pieces(counts, text);
      }
      std::lock_guard lock(mutex);
      impl_->counts.add(counts);
      impl_->bytes += bytes;
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < threads_of(impl_->options); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

std::unique_ptr<Tokenizer> TokenizerTrainer::train() const {
  const TokenizerTrainerOptions& options = impl_->options;
  if (impl_->bytes == 0) {
    fail(ErrorKind::kInput, "tokenizer", "expected text to learn from, got none");
  }
  std::vector<std::string> special{std::string(kEndOfText)};
  special.insert(special.end(), options.special_tokens.begin(), options.special_tokens.end());
  TokenList bytes;
  for (const char c : bytes_in_order()) bytes.push_back({&c, 1});
  MergeLearner learner(impl_->counts, std::move(bytes), special);
  const std::int64_t wanted = options.vocab_size - static_cast<std::int64_t>(special.size());
  while (learner.tokens().size() < wanted && learner.learn(options.min_frequency)) {
  }

  BpeModel model;
  model.tokens = learner.tokens();
  model.merges = learner.merges();
  for (const std::string& token : special) {
    model.special.push_back(model.tokens.size());
    model.tokens.push_back(token);
  }
  model.begin_of_text = model.end_of_text = model.special[0];
  return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kJson);
}

std::function<bool(std::string&)> read_in_blocks(std::vector<std::filesystem::path> files,
                                                 std::function<void(std::int64_t)> progress) {
  auto reader = std::make_shared<BlockReader>(std::move(files), std::move(progress));
  return [reader](std::string& text) { return reader->next(text); };
}

}  // namespace llmc
