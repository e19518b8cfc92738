#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "llmc/data/batch_source.h"
#include "llmc/nn/transformer.h"

namespace llmc {

/// What a model makes of a text.
struct Evaluation {
  double loss_sum = 0;  ///< nats, over the counted tokens
  std::int64_t counted_tokens = 0;

  double mean_loss() const;   ///< nats per token; NaN when nothing was counted
  double perplexity() const;  ///< exp(mean_loss)
  /// mean_loss in bits per byte of text, given how many bytes the average token stands for.
  double bits_per_byte(double bytes_per_token) const;
};

/// Measures loss without touching training. Every counted target weighs the same, so the result
/// depends on the tokens and on T, not on the micro-batch.
class Evaluator {
 public:
  /// The model must be allocated and outlive the Evaluator.
  explicit Evaluator(Transformer& model) : model_(model) {}

  /// The first `max_batches` batches of the source's first epoch, the whole epoch for 0; resets the
  /// source first. An input error for 0 and a source without end, or if B or T exceed the model's.
  Evaluation run(BatchSource& source, std::int64_t max_batches = 0);
  /// Every token but the first of each file once, in rows of T (0: the model's seq_len).
  Evaluation run(const std::vector<std::filesystem::path>& token_files, std::int64_t seq_len = 0);

 private:
  Transformer& model_;
};

}  // namespace llmc
