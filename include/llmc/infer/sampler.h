#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/nn/kv_cache.h"
#include "llmc/nn/transformer.h"
#include "llmc/ops/sample.h"

namespace llmc {

/// How the next token is chosen from the model's distribution. The restrictions apply in the order
/// of the fields.
struct SampleOptions {
  std::int64_t vocab_size = 0;  ///< only ids below it, as a tokenizer may have fewer; 0: all
  /// Logits of tokens that the text so far holds, the prompt included, are divided by it where they
  /// are positive, else multiplied by it. 1: no penalty.
  float repetition_penalty = 1.0f;
  float temperature = 1.0f;       ///< logits are divided by it; 0: always the likeliest token
  std::int64_t top_k = 0;         ///< only the k likeliest tokens; 0: all
  float top_p = 1.0f;             ///< only the fewest likeliest tokens that have this probability
  float min_p = 0.0f;             ///< only tokens at least this likely, relative to the likeliest
  std::uint64_t seed = 0;         ///< of the draws
  std::int32_t end_of_text = -1;  ///< the token that ends a text; −1: none
};

/// Throws a config error that names the first value out of range, and one for restrictions of a
/// draw where temperature 0 leaves nothing to draw.
void validate(const SampleOptions& options);

/// Continues token sequences with a model, several at a time: tokens are drawn where the logits
/// are (ops/sample.h), and the host reads one id of each sequence per step. The n-th token drawn
/// for sample s depends only on (seed, s, n) and the logits, so samples depend neither on what was
/// sampled before them nor on the other rows of their batch; the logits of a row may depend on the
/// number of rows in their last bits, as another algorithm of the matrix product may serve: not for
/// up to 16 rows on the CPU.
///
/// A sequence may outgrow the model's block_size: whenever a row of the cache is full, it is filled
/// again from the newest block_size / 2 tokens, at positions 0 and up, and grows from there.
class Sampler {
 public:
  /// Token ids of one sequence.
  using Tokens = std::vector<std::int32_t>;

  /// Allocates a cache for `rows` sequences at a time. The model must be allocated and outlive the
  /// Sampler.
  Sampler(Transformer& model, const SampleOptions& options, std::int64_t rows = 1);

  /// Called with each new token; returning false ends the sequence.
  using OnToken = std::function<bool(std::int32_t token)>;
  /// The same with the number of the prompt it continues.
  using OnRowToken = std::function<bool(std::size_t row, std::int32_t token)>;

  /// Draws up to max_new_tokens tokens after the prompt and returns them. Stops after end_of_text,
  /// which is returned and handed to the callback too. An empty prompt stands for end_of_text alone
  /// and is an input error without one; so is a prompt of more than block_size tokens.
  Tokens generate(std::span<const std::int32_t> prompt, std::int64_t max_new_tokens,
                  const OnToken& on_token = {}, std::int64_t sample = 0);
  /// The same for several prompts at once, at most `rows`: prompt i is continued by sample
  /// first_sample + i.
  std::vector<Tokens> generate_batch(std::span<const Tokens> prompts, std::int64_t max_new_tokens,
                                     const OnRowToken& on_token = {},
                                     std::int64_t first_sample = 0);

 private:
  std::vector<Tokens> start(std::span<const Tokens> prompts);
  void mark_seen(std::span<const Tokens> sequences);
  void make_room(std::int64_t row, const Tokens& sequence, bool goes_on);

  Transformer& model_;
  SampleRule rule_;
  std::int32_t end_of_text_;
  KvCache cache_;
  Buffer memory_;      // of the two tensors
  Tensor tokens_;      // (rows) i32: the newest token of each row
  Tensor seen_;        // (rows, V) u8: tokens that the penalty meets; empty without one
  Readback readback_;  // of tokens_
};

}  // namespace llmc
