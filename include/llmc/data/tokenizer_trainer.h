#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/prepare.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

struct TokenizerTrainerOptions {
  /// Ids in all: 256 bytes, merges, end-of-text and the special tokens. Fewer come out where the
  /// text has fewer pairs that are frequent enough.
  std::int64_t vocab_size = 32768;
  /// How often a pair must occur to be merged, at least 1.
  std::int64_t min_frequency = 2;
  /// Further special tokens beside <|endoftext|>: printable ASCII without spaces, at least two
  /// characters each.
  std::vector<std::string> special_tokens = {};
  /// Threads that read inputs and count pieces; 0: OMP_NUM_THREADS if set, else the processors this
  /// process may run on. The result does not depend on it.
  int threads = 0;
};

/// Learns a byte-level BPE vocabulary (Sennrich et al., 2016, over bytes) from text that is split
/// as GPT-2 does. The most frequent pair of neighbouring symbols becomes a token, then the most
/// frequent pair of what results, and so on. Of pairs that are equally frequent the one whose left
/// id is lowest comes first, then whose right id is. Overlapping pairs all count ("aaa" has two); a
/// pair that spells a token there is, or a special token, is passed over. So the result depends on
/// nothing but the pieces and how often each occurs.
///
/// Ids 0 to 255 are the bytes in GPT-2's order, then come merges, <|endoftext|>, special tokens.
class TokenizerTrainer {
 public:
  /// Options that cannot be are a config error.
  explicit TokenizerTrainer(TokenizerTrainerOptions options);
  ~TokenizerTrainer();
  TokenizerTrainer(TokenizerTrainer&&) noexcept;
  TokenizerTrainer& operator=(TokenizerTrainer&&) noexcept;

  /// Counts the pieces of a text, for example a document. Special tokens in it are text as any.
  void add(std::string_view text);
  /// The same for each document of the inputs that the options name; of these `inputs`, `format`,
  /// `field`, `split` and `delimiter` count, and `out_dir`, which must not be inside an input
  /// folder. Errors are those of prepare_dataset. `progress`, if any, is told the bytes of text so
  /// far, now and then and by one thread at a time.
  void add_inputs(const PrepareOptions& options,
                  const std::function<void(std::int64_t bytes)>& progress = {});

  /// Bytes of text so far, and distinct pieces in them.
  std::int64_t bytes() const;
  std::int64_t pieces() const;

  /// The tokenizer that the text so far gives; without any text an input error. Save it with
  /// Tokenizer::save as vocab.json, merges.txt and tokenizer.json.
  std::unique_ptr<Tokenizer> train() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
