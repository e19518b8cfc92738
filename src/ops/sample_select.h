#pragma once

// How a token is drawn, step by step: every backend runs this same code. constexpr lets the CUDA
// compiler call it from kernels.
//
// Logits are compared by keys, 32-bit integers in the same order, and probabilities are integers:
// sums of integers come out the same in any order. A restriction (top_k, top_p) is a Cut, found
// digit by digit: a histogram over the keys' first 8 bits, of counts or of probabilities, says in
// which digit the likeliest tokens reach the amount wanted; a second one over the next 8 bits of
// the keys that begin with that digit goes on, and four of them find the key itself. The draw is
// then a point in the sum of the tokens left, which are taken in order of their ids.

#include <bit>
#include <cmath>
#include <cstdint>

#include "llmc/core/rng.h"
#include "llmc/ops/sample.h"

namespace llmc::sampling {

inline constexpr int kDigitBits = 8;
inline constexpr int kDigits = 1 << kDigitBits;
inline constexpr int kRounds = 32 / kDigitBits;

/// A sum of probabilities in units of kLeastProbability, or a count.
using Amount = unsigned long long;

/// In the order of the values; 0 is less than that of any finite value, and −0 equals 0.
constexpr std::uint32_t key_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
constexpr float value_of(std::uint32_t key) {
  return std::bit_cast<float>((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

constexpr bool is_finite(float x) {
  return x - x == 0.0f;
}

/// A logit under the repetition penalty.
constexpr float penalised(float logit, float penalty) {
  return logit > 0.0f ? logit / penalty : logit * penalty;
}

/// Probability of a token relative to the likeliest, 0 if that is below min_p.
constexpr Amount probability(float logit, float largest, float temperature, float min_p) {
  constexpr float kLeastExponent = -26.4f;  // its exponential is below kLeastProbability
  const float exponent = (logit - largest) / temperature;
  if (!(exponent > kLeastExponent)) return 0;
  const float p = std::exp(exponent);
  return p < min_p ? 0 : static_cast<Amount>(p * (1.0f / kLeastProbability));
}

/// The tokens left by a restriction: those whose key is above `key`, and of those that have it the
/// `ties` lowest ids.
struct Cut {
  std::uint32_t key = 0;
  Amount ties = 0;
};

/// The search for a Cut: so far, the digits of its key that are known.
struct Search {
  std::uint32_t prefix = 0;  ///< known digits, in place
  int shift = 32;            ///< bits below them
  Amount wanted = 0;         ///< of the tokens whose key begins with them

  /// Whether the next histogram counts a key.
  constexpr bool counts(std::uint32_t key) const {
    return shift == 32 || (key ^ prefix) >> shift == 0;
  }
  constexpr int digit(std::uint32_t key) const {
    return static_cast<int>(key >> (shift - kDigitBits)) & (kDigits - 1);
  }
  /// Takes the histogram of the next digit, whose total is at least `wanted`.
  constexpr void narrow(const Amount (&histogram)[kDigits]) {
    int digit = kDigits - 1;
    for (; digit > 0 && histogram[digit] < wanted; --digit) wanted -= histogram[digit];
    shift -= kDigitBits;
    prefix |= static_cast<std::uint32_t>(digit) << shift;
  }
};

/// The part top_p of a total, at least 1.
constexpr Amount part_of(Amount total, float top_p) {
  const auto part = static_cast<Amount>(static_cast<double>(total) * static_cast<double>(top_p));
  return part < 1 ? 1 : part < total ? part : total;
}

/// The Cut at the end of a search for probability, whose key's tokens have `each`.
constexpr Cut cut_of(const Search& search, Amount each) {
  return {search.prefix, (search.wanted + each - 1) / each};
}

/// The point in a total that a random number of 53 bits chooses.
constexpr Amount point_in(Amount total, std::uint64_t random) {
  const auto point =
      static_cast<Amount>(static_cast<double>(random) * 0x1p-53 * static_cast<double>(total));
  return point < total ? point : total - 1;
}

/// The random number of a draw, 53 bits.
constexpr std::uint64_t random_of(std::uint64_t seed, std::int64_t sample, std::int64_t draw) {
  const auto words =
      philox4x32(seed, static_cast<std::uint64_t>(draw), static_cast<std::uint64_t>(sample));
  return (static_cast<std::uint64_t>(words[0]) << 32 | words[1]) >> 11;
}

}  // namespace llmc::sampling
