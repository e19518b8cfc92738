// Decoding through a KV cache gives what a forward pass over everything gives.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "llmc/core/error.h"
#include "nn/tiny_model.h"

namespace llmc {
namespace {

const ModelConfig kConfig = ModelConfig::gpt2(3, 3, 39, 20, 97);
constexpr std::int64_t kB = 2, kT = 17, kV = 97;

class Decode : public ::testing::TestWithParam<DType> {
 protected:
  // `rows` · `seq_len` decides how many tokens decode takes at a time.
  Transformer model(std::int64_t rows, std::int64_t seq_len) {
    TransformerOptions o;
    o.micro_batch = rows;
    o.seq_len = seq_len;
    o.dtype = GetParam();
    o.training = false;
    o.head_chunk_bytes = 1;
    return testing::make_model(kConfig, o);
  }
  /// Logits of every position, (B, T, V).
  std::vector<float> full_logits(const std::vector<std::int32_t>& tokens) {
    std::vector<float> logits(static_cast<std::size_t>(kB * kT * kV));
    model(kB, kT).logits(logits, tokens);
    return logits;
  }
  /// Of (B, T) tokens those at positions [begin, end), of each row.
  static std::vector<std::int32_t> slice(const std::vector<std::int32_t>& tokens,
                                         std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> part;
    for (std::int64_t b = 0; b < kB; ++b) {
      part.insert(part.end(), tokens.begin() + b * kT + begin, tokens.begin() + b * kT + end);
    }
    return part;
  }
  static std::vector<float> logits_at(const std::vector<float>& all, std::int64_t position) {
    std::vector<float> part;
    for (std::int64_t b = 0; b < kB; ++b) {
      const auto begin = all.begin() + (b * kT + position) * kV;
      part.insert(part.end(), begin, begin + kV);
    }
    return part;
  }
  double tolerance() const { return GetParam() == DType::kF32 ? 1e-5 : 0.03; }
};

INSTANTIATE_TEST_SUITE_P(Transformer, Decode, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Decode, PromptThenSingleTokens) {
  const auto tokens = testing::random_batch(kV, kB * kT, 3).tokens;
  const auto all = full_logits(tokens);
  for (const std::int64_t seq_len : {kT, std::int64_t{4}, std::int64_t{1}}) {
    Transformer m = model(kB, seq_len);
    KvCache cache = m.make_cache(kB);
    std::vector<float> logits(kB * kV);
    constexpr std::int64_t kPrompt = 6;
    m.decode(logits, cache, slice(tokens, 0, kPrompt));
    EXPECT_LT(testing::relative_l2(logits, logits_at(all, kPrompt - 1)), tolerance());
    for (std::int64_t t = kPrompt; t < kT; ++t) {
      m.decode(logits, cache, slice(tokens, t, t + 1));
      ASSERT_LT(testing::relative_l2(logits, logits_at(all, t)), tolerance()) << t;
    }
    EXPECT_EQ(cache.position(), kT);
  }
}

TEST_P(Decode, TruncatedCacheGoesOnFromThere) {
  const auto tokens = testing::random_batch(kV, kB * kT, 3).tokens;
  const auto all = full_logits(tokens);
  Transformer m = model(kB, kT);
  KvCache cache = m.make_cache(kB);
  std::vector<float> logits(kB * kV);
  m.decode(logits, cache, slice(tokens, 0, 9));
  m.decode(logits, cache, slice(tokens, 0, 3));  // something else
  cache.truncate(9);
  m.decode(logits, cache, slice(tokens, 9, kT));
  EXPECT_LT(testing::relative_l2(logits, logits_at(all, kT - 1)), tolerance());
  EXPECT_THROW(cache.truncate(kT + 1), Error);
  EXPECT_THROW(cache.truncate(-1), Error);
}

TEST_P(Decode, TrainingModelsDecodeToo) {
  const auto tokens = testing::random_batch(kV, kB * kT, 3).tokens;
  TransformerOptions o;
  o.micro_batch = kB;
  o.seq_len = 5;
  o.dtype = GetParam();
  Transformer m = testing::make_model(kConfig, o);
  KvCache cache = m.make_cache(kB);
  std::vector<float> logits(kB * kV);
  m.decode(logits, cache, tokens);
  EXPECT_LT(testing::relative_l2(logits, logits_at(full_logits(tokens), kT - 1)), tolerance());
}

TEST_P(Decode, RefusesWhatDoesNotFit) {
  Transformer m = model(kB, kT);
  std::vector<float> logits(kB * kV);
  EXPECT_THROW(m.make_cache(0), Error);
  EXPECT_THROW(m.make_cache(1, 21), Error);
  KvCache cache = m.make_cache(kB, 4);
  std::vector<std::int32_t> tokens(kB * 5, 1);
  EXPECT_THROW(m.decode(logits, cache, tokens), Error);
  tokens.resize(3);
  EXPECT_THROW(m.decode(logits, cache, tokens), Error);
  tokens.clear();
  EXPECT_THROW(m.decode(logits, cache, tokens), Error);
  tokens = {1, 97};
  EXPECT_THROW(m.decode(logits, cache, tokens), Error);
  tokens = {1, 1};
  EXPECT_THROW(m.decode(std::span(logits).first(kV), cache, tokens), Error);
  KvCache wide = m.make_cache(kB + 1);
  tokens = {1, 1, 1};
  logits.resize((kB + 1) * kV);
  EXPECT_THROW(m.decode(logits, wide, tokens), Error);
  KvCache other(Device::open({.threads = 1}), ModelConfig::gpt2(1, 3, 39, 20, 97), GetParam(), kB);
  tokens = {1, 1};
  logits.resize(kB * kV);
  EXPECT_THROW(m.decode(logits, other, tokens), Error);
  EXPECT_EQ(cache.position(), 0);
}

}  // namespace
}  // namespace llmc
