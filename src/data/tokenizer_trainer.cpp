#include "llmc/data/tokenizer_trainer.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/system_limits.h"
#include "data/block_documents.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_characters.h"
#include "data/input_files.h"
#include "data/merge_learner.h"
#include "data/piece_counts.h"
#include "data/text_blocks.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::int64_t kBytes = 256;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

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
  if (options.threads < 0 || options.threads > kMaxThreads) {
    fail(ErrorKind::kConfig, "tokenizer", "threads: expected 0 to ", kMaxThreads, ", got ",
         options.threads);
  }
}

void count_pieces(PieceCounts& counts, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(SplitPattern::kGpt2, text, at);
    counts.add(text.substr(at, end - at));
    at = end;
  }
}

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

void TokenizerTrainer::add_inputs(const PrepareOptions& options,
                                  const std::function<void(std::int64_t)>& progress) {
  const std::vector<InputFile> inputs = list_inputs(options);
  FileBlocks source(inputs, options);
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    PieceCounts counts;
    try {
      for (TextBlock block;;) {
        {
          std::lock_guard lock(mutex);
          if (error || !source.next(block)) break;
        }
        std::int64_t bytes = 0;
        for_each_document(block, options, [&](const BlockDocument& document) {
          count_pieces(counts, document.text);
          bytes += static_cast<std::int64_t>(document.text.size());
        });
        std::lock_guard lock(mutex);
        impl_->bytes += bytes;
        if (progress) progress(impl_->bytes);
      }
      std::lock_guard lock(mutex);
      impl_->counts.add(counts);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  const int count = impl_->options.threads > 0 ? impl_->options.threads : default_threads();
  std::vector<std::thread> threads;
  try {
    for (int t = 1; t < count; ++t) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // Fewer threads do the same work.
  }
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

}  // namespace llmc
