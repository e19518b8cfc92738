#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/data/batch_source.h"
#include "llmc/data/choices.h"
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

/// Which ending of an example a model takes, by three rules. Of equal ones, the first.
struct ChoicePrediction {
  std::int32_t by_sum = 0;         ///< the ending with the largest summed log-probability
  std::int32_t by_character = -1;  ///< the same per character of its text; −1: that is unknown
  std::int32_t by_token = 0;       ///< the same per token
};

/// How many examples a model got right.
struct ChoiceAccuracy {
  std::int64_t examples = 0;
  double acc = 0;  ///< by_sum, as lm-evaluation-harness defines acc
  /// by_character, as it defines acc_norm; nothing where an ending's text is unknown.
  std::optional<double> acc_norm;
  double acc_token = 0;  ///< by_token, as llm.c measures
};

/// predictions: one for each example.
ChoiceAccuracy accuracy_of(std::span<const ChoiceExample> examples,
                           std::span<const ChoicePrediction> predictions);

/// Measures loss, and the right answers to questions, without touching training. Every counted
/// target weighs the same, so the result depends on the tokens and on T, not on the micro-batch.
class Evaluator {
 public:
  /// The model must be allocated and outlive the Evaluator.
  explicit Evaluator(Transformer& model) : model_(model) {}

  /// The source's first epoch, or as many of its first rows as have at least `max_tokens` counted
  /// targets together (0: all); resets the source first. An input error for 0 and a source without
  /// end, or if B or T exceed the model's. With several ranks, which all have the whole source, the
  /// batches are dealt out, and all get the sums, added in order of rank; `ranks` may be null.
  Evaluation run(BatchSource& source, std::int64_t max_tokens = 0, Communicator* ranks = nullptr);
  /// Every token but the first of each file once, in rows of T (0: the model's seq_len).
  Evaluation run(const std::vector<std::filesystem::path>& token_files, std::int64_t seq_len = 0);
  /// Every token but the first once, in rows of T (0: the model's seq_len).
  Evaluation run(std::span<const std::int32_t> tokens, std::int64_t seq_len = 0);

  /// Asks the model all examples. Its endings, each behind its context, are taken in order of
  /// length, as many at a time as fit the planned B·T, and padded only to the longest of them. Of
  /// examples that are longer than T the beginning is left out. With several ranks, each is asked
  /// its share and all get all predictions; `ranks` may be null. See check_choices for what may be
  /// wrong with the examples.
  std::vector<ChoicePrediction> choose(std::span<const ChoiceExample> examples,
                                       Communicator* ranks = nullptr);

 private:
  struct ChoiceRow;
  void score(std::span<ChoiceRow> rows);

  Transformer& model_;
};

}  // namespace llmc
