#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "llmc/nn/kv_cache.h"
#include "llmc/nn/transformer.h"

namespace llmc {

/// How the next token is chosen from the model's distribution. The restrictions apply in the order
/// of the fields.
struct SampleOptions {
  std::int64_t vocab_size = 0;    ///< only ids below it, as a tokenizer may have fewer; 0: all
  float temperature = 1.0f;       ///< logits are divided by it; 0: always the likeliest token
  std::int64_t top_k = 0;         ///< only the k likeliest tokens; 0: all
  float top_p = 1.0f;             ///< only the fewest likeliest tokens that have this probability
  std::uint64_t seed = 0;         ///< of the draws
  std::int32_t end_of_text = -1;  ///< the token that ends a text; −1: none
};

/// Throws a config error that names the first value out of range.
void validate(const SampleOptions& options);

/// The token at `uniform` (in [0, 1)) of the distribution's cumulative sum, likeliest token first;
/// equal logits go by id. logits: (V), finite. order: working memory, resized to V.
std::int32_t pick_token(std::span<const float> logits, const SampleOptions& options, double uniform,
                        std::vector<std::int32_t>& order);

/// Continues token sequences with a model. The n-th token drawn for sample s depends only on
/// (seed, s, n) and the logits, so samples do not depend on what was sampled before them.
///
/// A sequence may outgrow the model's block_size: whenever the cache is full, it is filled again
/// from the newest block_size / 2 tokens, at positions 0 and up, and grows from there. The same
/// holds for a prompt of more than block_size tokens.
class Sampler {
 public:
  /// Allocates a cache for one row. The model must be allocated and outlive the Sampler.
  Sampler(Transformer& model, const SampleOptions& options);

  /// Called with each new token; returning false ends the sequence.
  using OnToken = std::function<bool(std::int32_t token)>;

  /// Draws up to max_new_tokens tokens after the prompt and returns them. Stops after end_of_text,
  /// which is returned and handed to the callback too. An empty prompt stands for end_of_text alone
  /// and is an input error without one.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                     std::int64_t max_new_tokens, const OnToken& on_token = {},
                                     std::uint64_t sample = 0);

 private:
  void refill(std::span<const std::int32_t> sequence);
  Transformer& model_;
  SampleOptions options_;
  KvCache cache_;
  std::vector<float> logits_;
  std::size_t choices_;  // ids that may be drawn: those below it
  std::vector<std::int32_t> order_;
};

}  // namespace llmc
