#pragma once

#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// How the next token is drawn from a row of logits. The restrictions apply in the order of the
/// fields; equal logits go by id, the lower first.
struct SampleRule {
  std::int64_t vocab_size = 0;  ///< only ids below it; at least 1
  /// Logits of tokens seen before are divided by it where they are positive, else multiplied by it
  /// (Keskar et al., 2019, with the correction for negative logits). 1: no penalty.
  float repetition_penalty = 1.0f;
  float temperature = 1.0f;  ///< logits are divided by it; 0: always the likeliest token
  std::int64_t top_k = 0;    ///< only the k likeliest tokens; 0: all
  float top_p = 1.0f;        ///< only the fewest likeliest tokens that have this probability
  float min_p = 0.0f;        ///< only tokens at least this likely, relative to the likeliest
  std::uint64_t seed = 0;    ///< of the draws
};

/// Throws a config error that names the first value out of range; vocab_size may be 0.
void check_rule(const SampleRule& rule);

/// Tokens less likely than this, relative to the likeliest, are never drawn: probabilities are
/// added up as integers, in units of it, so that their sums depend on no order.
inline constexpr float kLeastProbability = 0x1p-38f;

/// tokens[b] = a token drawn from row b of the logits by the random number that belongs to the
/// seed, to sample first_sample + b, and to `draw`, the number of tokens drawn for it before;
/// −1 for a row whose logits are not all finite. CPU and GPU draw the same tokens from the same
/// logits, but for the last bit of the exponentials. tokens: (B) i32; seen: (B, S) u8, S at least
/// vocab_size, not 0 for the tokens that the penalty meets, where the drawn one is marked too;
/// empty for no penalty; logits: (B, Vp) f32 or bf16. Throws a config error for a rule out of
/// range.
void sample_tokens(Stream& stream, const Tensor& tokens, const Tensor& seen, const Tensor& logits,
                   const SampleRule& rule, std::int64_t first_sample, std::int64_t draw);

}  // namespace llmc
