#include "llmc/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "llmc/core/rng.h"
#include "ops/isa_test.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

class Sample : public IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isa, Sample, ::testing::ValuesIn(available_isas()), isa_name);

/// In [0, 1), as documented: philox of the seed, the draw and the sample.
double uniform(std::uint64_t seed, std::int64_t sample, std::int64_t draw) {
  const auto words =
      philox4x32(seed, static_cast<std::uint64_t>(draw), static_cast<std::uint64_t>(sample));
  return static_cast<double>((std::uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

/// Probability of every id under the rule, by sorting and in fp64. seen: empty, or a flag an id.
Values probabilities(Values logits, const SampleRule& rule, const std::vector<bool>& seen = {}) {
  logits.resize(static_cast<std::size_t>(rule.vocab_size));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (seen.empty() || !seen[i]) continue;
    const double penalty = rule.repetition_penalty;
    logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
  }
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  Values p(logits.size(), 0.0);
  const double temperature = rule.temperature;
  if (temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  if (rule.top_k > 0 && rule.top_k < std::ssize(order)) {
    order.resize(static_cast<std::size_t>(rule.top_k));
  }
  double total = 0;
  for (const std::size_t i : order) {
    total += p[i] = std::exp((logits[i] - logits[order[0]]) / temperature);
  }
  double kept = 0;
  for (const std::size_t i : order) {
    const bool reached = kept >= rule.top_p * total && rule.top_p < 1;
    kept += p[i];
    if (reached || p[i] < rule.min_p) p[i] = 0;
  }
  const double left = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= left;
  return p;
}

/// The draw falls to `token`, but for rounding: u lies in its part of the sum in order of ids.
void expect_drawn(std::int32_t token, const Values& p, double u) {
  ASSERT_GE(token, 0);
  ASSERT_LT(token, std::ssize(p));
  const auto at = p.begin() + token;
  const double before = std::accumulate(p.begin(), at, 0.0);
  EXPECT_GT(*at, 0) << token;
  EXPECT_GE(u, before - 1e-5) << token;
  EXPECT_LE(u, before + *at + 1e-5) << token;
}

Tokens read(Stream& stream, const Tensor& tokens) {
  Tokens out(static_cast<std::size_t>(tokens.numel()));
  copy_to_host(stream, out.data(), tokens);
  return out;
}

TEST_P(Sample, DrawsFromWhatEveryRestrictionLeaves) {
  Stream stream = open();
  constexpr std::int64_t kB = 3;
  const SampleRule rules[] = {
      {},
      {.temperature = 0.5f},
      {.temperature = 3.0f, .top_k = 7},
      {.top_k = 1},
      {.top_k = 10'000},
      {.top_p = 0.5f},
      {.temperature = 2.0f, .top_p = 0.9f},
      {.top_p = 1e-6f},
      {.min_p = 0.1f},
      {.min_p = 1.0f},
      {.temperature = 1.5f, .top_k = 50, .top_p = 0.8f, .min_p = 0.02f},
      {.temperature = 0.0f},
  };
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t V : {1, 5, 97, 1000, 5003}) {
      const std::int64_t Vp = V + 3;
      // bf16 has many equal logits.
      const auto logits = TestTensor::random(stream, dtype, {kB, Vp}, 5, 2.0);
      const Values x = logits.values();
      for (SampleRule rule : rules) {
        rule.vocab_size = V;
        rule.seed = 9;
        for (std::int64_t draw = 0; draw < 8; ++draw) {
          SCOPED_TRACE(concat(name_of(dtype), " V ", V, " temperature ", rule.temperature,
                              " top_k ", rule.top_k, " top_p ", rule.top_p, " min_p ", rule.min_p,
                              " draw ", draw));
          const TestTensor tokens(stream, DType::kI32, {kB});
          sample_tokens(stream, tokens, {}, logits, rule, 4, draw);
          const Tokens got = read(stream, tokens);
          for (std::int64_t b = 0; b < kB; ++b) {
            const auto begin = x.begin() + static_cast<std::ptrdiff_t>(b * Vp);
            expect_drawn(got[static_cast<std::size_t>(b)],
                         probabilities({begin, begin + static_cast<std::ptrdiff_t>(V)}, rule),
                         uniform(rule.seed, 4 + b, draw));
          }
        }
      }
    }
  }
}

TEST_P(Sample, FrequenciesAreTheProbabilities) {
  Stream stream = open();
  const SampleRule rule{.vocab_size = 5, .temperature = 0.8f, .top_k = 4, .seed = 3};
  const Values logits = {0.5, 2.0, -1.0, 1.0, 2.0};
  constexpr std::int64_t kB = 500;
  Values rows;
  for (std::int64_t b = 0; b < kB; ++b) rows.insert(rows.end(), logits.begin(), logits.end());
  const TestTensor many(stream, DType::kF32, {kB, 5}, rows);
  const TestTensor tokens(stream, DType::kI32, {kB});
  Values counts(5, 0.0);
  constexpr std::int64_t kDraws = 40;
  for (std::int64_t draw = 0; draw < kDraws; ++draw) {
    sample_tokens(stream, tokens, {}, many, rule, 0, draw);
    for (const std::int32_t token : read(stream, tokens)) {
      counts[static_cast<std::size_t>(token)] += 1.0 / static_cast<double>(kB * kDraws);
    }
  }
  const Values p = probabilities(logits, rule);
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(counts[i], p[i], 0.015) << i;
}

TEST_P(Sample, TiesGoByIdTheLowerFirst) {
  Stream stream = open();
  const TestTensor logits(stream, DType::kF32, {1, 6}, {1.0, 2.0, 2.0, 0.0, 2.0, -0.0});
  const TestTensor tokens(stream, DType::kI32, {1});
  const auto drawn = [&](SampleRule rule) {
    rule.vocab_size = 6;
    std::vector<bool> found(6, false);
    for (std::int64_t draw = 0; draw < 200; ++draw) {
      sample_tokens(stream, tokens, {}, logits, rule, 0, draw);
      found[static_cast<std::size_t>(read(stream, tokens)[0])] = true;
    }
    return found;
  };
  using Found = std::vector<bool>;
  EXPECT_EQ(drawn({.temperature = 0.0f}), (Found{0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(drawn({.top_k = 2}), (Found{0, 1, 1, 0, 0, 0}));
  EXPECT_EQ(drawn({.top_k = 3}), (Found{0, 1, 1, 0, 1, 0}));
  EXPECT_EQ(drawn({.temperature = 9.0f, .top_k = 5}), (Found{1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(drawn({.top_p = 0.5f}), (Found{0, 1, 1, 0, 0, 0}));
  // Of two that top_k left, the first alone has half of the probability.
  EXPECT_EQ(drawn({.top_k = 2, .top_p = 0.5f}), (Found{0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(drawn({.min_p = 0.9f}), (Found{0, 1, 1, 0, 1, 0}));
}

TEST_P(Sample, ThePenaltyMeetsSeenTokensAndMarksTheDrawn) {
  Stream stream = open();
  constexpr std::int64_t kV = 97;
  const auto logits = TestTensor::random(stream, DType::kF32, {1, kV + 2}, 5, 2.0);
  Values x = logits.values();
  const Buffer memory(stream.device(), kV);
  const Tensor seen(memory.data(), DType::kU8, {1, kV});
  std::vector<std::uint8_t> marks(kV, 0);
  for (std::size_t i = 0; i < marks.size(); i += 3) marks[i] = 1;
  const TestTensor tokens(stream, DType::kI32, {1});
  for (const float penalty : {1.7f, 0.5f}) {
    for (std::int64_t draw = 0; draw < 30; ++draw) {
      const SampleRule rule{.vocab_size = kV, .repetition_penalty = penalty, .top_k = 30};
      copy_from_host(stream, seen, marks.data());
      sample_tokens(stream, tokens, seen, logits, rule, 2, draw);
      const std::int32_t token = read(stream, tokens)[0];
      expect_drawn(token, probabilities(x, rule, {marks.begin(), marks.end()}),
                   uniform(0, 2, draw));
      std::vector<std::uint8_t> after(kV);
      copy_to_host(stream, after.data(), seen);
      auto expected = marks;
      expected[static_cast<std::size_t>(token)] = 1;
      EXPECT_EQ(after, expected);
    }
  }
}

TEST_P(Sample, ExtremesAreDrawnFrom) {
  Stream stream = open();
  const TestTensor tokens(stream, DType::kI32, {1});
  const auto drawn = [&](const Values& logits, SampleRule rule) {
    const TestTensor row(stream, DType::kF32, {1, std::ssize(logits)}, logits);
    rule.vocab_size = std::ssize(logits);
    sample_tokens(stream, tokens, {}, row, rule, 0, 0);
    return read(stream, tokens)[0];
  };
  const Values far = {-3e38, 3e38, 0.0};
  EXPECT_EQ(drawn(far, {.temperature = 1e-38f}), 1);
  EXPECT_EQ(drawn(far, {.temperature = 1e30f, .top_p = 0.9f}), 1);
  EXPECT_EQ(drawn(far, {.top_k = 2}), 1);
  EXPECT_EQ(drawn({7.0}, {}), 0);
  const double kInfinity = std::numeric_limits<double>::infinity();
  for (const float temperature : {0.0f, 1.0f}) {
    for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
      EXPECT_EQ(drawn({1.0, bad, 2.0}, {.temperature = temperature}), -1) << bad;
    }
  }
  // What lies beyond the vocabulary has no influence.
  const TestTensor padded(stream, DType::kF32, {1, 3}, {1.0, 2.0, kInfinity});
  sample_tokens(stream, tokens, {}, padded, {.vocab_size = 2, .temperature = 0.0f}, 0, 0);
  EXPECT_EQ(read(stream, tokens)[0], 1);
}

TEST_P(Sample, RowsDependOnTheirNumberOnly) {
  Stream stream = open();
  constexpr std::int64_t kB = 5, kV = 301;
  const auto logits = TestTensor::random(stream, DType::kF32, {kB, kV}, 5, 1.0);
  const SampleRule rule{.vocab_size = kV, .seed = 4};
  const TestTensor all(stream, DType::kI32, {kB}), one(stream, DType::kI32, {1});
  sample_tokens(stream, all, {}, logits, rule, 10, 6);
  const Tokens together = read(stream, all);
  for (std::int64_t b = 0; b < kB; ++b) {
    sample_tokens(stream, one, {}, logits->rows(b, b + 1), rule, 10 + b, 6);
    EXPECT_EQ(read(stream, one)[0], together[static_cast<std::size_t>(b)]);
  }
  sample_tokens(stream, all, {}, logits, rule, 10, 7);
  EXPECT_NE(read(stream, all), together);
}

TEST(SampleErrors, NameTheValue) {
  Stream stream = open_stream();
  const TestTensor tokens(stream, DType::kI32, {2});
  const TestTensor logits(stream, DType::kF32, {2, 8});
  const auto refused = [&](const char* message, SampleRule rule) {
    rule.vocab_size = rule.vocab_size == 0 ? 8 : rule.vocab_size;
    expect_error(ErrorKind::kConfig, message,
                 [&] { sample_tokens(stream, tokens, {}, logits, rule, 0, 0); });
  };
  const float nan = std::nanf(""), infinite = std::numeric_limits<float>::infinity();
  for (const float bad : {-1.0f, nan, infinite}) {
    refused("[sampler] temperature: expected 0 or more", {.temperature = bad});
    refused("[sampler] repetition_penalty: expected more than 0", {.repetition_penalty = bad});
  }
  refused("[sampler] repetition_penalty", {.repetition_penalty = 0.0f});
  refused("[sampler] top_k: expected 0 or more, got -1", {.top_k = -1});
  for (const float bad : {0.0f, 1.5f, nan}) refused("[sampler] top_p", {.top_p = bad});
  for (const float bad : {-0.5f, 1.5f, nan}) refused("[sampler] min_p", {.min_p = bad});
  refused("[sampler] vocab_size", {.vocab_size = 1'000'001});
  const auto bad_call = [&](const char* message, const auto& call) {
    expect_error(ErrorKind::kInput, message, call);
  };
  bad_call("[sample_tokens] vocab_size: expected 1 to 8, got 9",
           [&] { sample_tokens(stream, tokens, {}, logits, {.vocab_size = 9}, 0, 0); });
  bad_call("[sample_tokens] tokens",
           [&] { sample_tokens(stream, logits, {}, logits, {.vocab_size = 8}, 0, 0); });
  const TestTensor three(stream, DType::kI32, {3});
  bad_call("[sample_tokens] logits: expected f32 (3, 8), got f32 (2, 8)",
           [&] { sample_tokens(stream, three, {}, logits, {.vocab_size = 8}, 0, 0); });
  const Buffer memory(stream.device(), 64);
  bad_call("[sample_tokens] seen: expected at least 8 columns, got 7", [&] {
    sample_tokens(stream, tokens, Tensor(memory.data(), DType::kU8, {2, 7}), logits,
                  {.vocab_size = 8}, 0, 0);
  });
  bad_call("[sample_tokens] sample and draw",
           [&] { sample_tokens(stream, tokens, {}, logits, {.vocab_size = 8}, 0, -1); });
}

}  // namespace
}  // namespace llmc::testing
