// Decoding through a KV cache gives what a forward pass over everything gives.

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "llmc/core/error.h"
#include "nn/tiny_model.h"
#include "support/temp_folder.h"

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
  /// Tokens [begin, end) of row b.
  static std::span<const std::int32_t> part(const std::vector<std::int32_t>& tokens, std::int64_t b,
                                            std::int64_t begin, std::int64_t end) {
    return std::span(tokens).subspan(static_cast<std::size_t>(b * kT + begin),
                                     static_cast<std::size_t>(end - begin));
  }
  /// decode of token t of row 0 and token t + lead of row 1, from host memory.
  static void decode(Transformer& m, KvCache& cache, const std::vector<std::int32_t>& tokens,
                     std::int64_t t, std::int64_t lead = 0) {
    const std::int32_t ids[kB] = {tokens[static_cast<std::size_t>(t)],
                                  tokens[static_cast<std::size_t>(kT + t + lead)]};
    const Buffer memory(m.stream().device(), sizeof ids);
    const Tensor device_ids(memory.data(), DType::kI32, {kB});
    copy_from_host(m.stream(), device_ids, ids);
    m.decode(cache, device_ids);
    m.stream().synchronize();
  }
  static std::vector<float> read(Transformer& m, const KvCache& cache) {
    std::vector<float> logits(static_cast<std::size_t>(cache.batch() * kV));
    m.read_logits(logits, cache);
    return logits;
  }
  /// Those of position t of row 0 and position t + lead of row 1.
  static std::vector<float> logits_at(const std::vector<float>& all, std::int64_t t,
                                      std::int64_t lead = 0) {
    std::vector<float> part;
    for (std::int64_t b = 0; b < kB; ++b) {
      const auto begin = all.begin() + (b * kT + t + b * lead) * kV;
      part.insert(part.end(), begin, begin + kV);
    }
    return part;
  }
  double tolerance() const { return GetParam() == DType::kF32 ? 1e-5 : 0.03; }
};

INSTANTIATE_TEST_SUITE_P(Transformer, Decode, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Decode, PromptsOfDifferentLengthsThenSingleTokens) {
  const auto tokens = testing::random_batch(kV, kB * kT, 3).tokens;
  const auto all = full_logits(tokens);
  for (const std::int64_t seq_len : {kT, std::int64_t{4}, std::int64_t{1}}) {
    Transformer m = model(kB, seq_len);
    KvCache cache = m.make_cache(kB);
    constexpr std::int64_t kPrompt = 6, kLead = 3;
    m.prefill(cache, 0, part(tokens, 0, 0, kPrompt));
    m.prefill(cache, 1, part(tokens, 1, 0, kPrompt + kLead));
    EXPECT_LT(testing::relative_l2(read(m, cache), logits_at(all, kPrompt - 1, kLead)),
              tolerance());
    for (std::int64_t t = kPrompt; t + kLead < kT; ++t) {
      decode(m, cache, tokens, t, kLead);
      ASSERT_LT(testing::relative_l2(read(m, cache), logits_at(all, t, kLead)), tolerance()) << t;
    }
    EXPECT_EQ(cache.position(0), kT - kLead);
    EXPECT_EQ(cache.position(1), kT);
  }
}

TEST_P(Decode, TruncatedAndCopiedRowsGoOnFromThere) {
  const auto tokens = testing::random_batch(kV, kB * kT, 3).tokens;
  const auto all = full_logits(tokens);
  Transformer m = model(kB, kT);
  KvCache cache = m.make_cache(kB);
  m.prefill(cache, 0, part(tokens, 0, 0, 9));
  m.prefill(cache, 0, part(tokens, 0, 0, 3));  // something else
  cache.truncate(0, 9);
  m.prefill(cache, 1, part(tokens, 0, 0, 2));
  cache.truncate(1, 0);
  m.prefill(cache, 1, part(tokens, 1, 0, 9));
  decode(m, cache, tokens, 9);
  EXPECT_LT(testing::relative_l2(read(m, cache), logits_at(all, 9)), tolerance());

  cache.copy_row(m.stream(), 1, 0);
  const auto copied = read(m, cache);
  EXPECT_TRUE(std::equal(copied.begin(), copied.begin() + kV, copied.begin() + kV));
  EXPECT_EQ(cache.position(1), 10);
  auto same = tokens;
  std::copy_n(tokens.begin(), kT, same.begin() + kT);
  decode(m, cache, same, 10);
  const auto after = read(m, cache);
  const auto expected = logits_at(all, 10);
  for (const auto begin : {after.begin(), after.begin() + kV}) {
    EXPECT_LT(testing::relative_l2({begin, begin + kV}, {expected.begin(), expected.begin() + kV}),
              tolerance());
  }
  EXPECT_THROW(cache.truncate(0, kT + 1), Error);
  EXPECT_THROW(cache.truncate(0, -1), Error);
  EXPECT_THROW(cache.truncate(kB, 0), Error);
  EXPECT_THROW(cache.copy_row(m.stream(), kB, 0), Error);
  EXPECT_THROW(cache.copy_row(m.stream(), 0, -1), Error);
}

TEST_P(Decode, FewerRowsThanTheCacheHas) {
  const auto tokens = testing::random_batch(kV, kB * kT, 3).tokens;
  const auto all = full_logits(tokens);
  Transformer m = model(kB, kT);
  KvCache cache = m.make_cache(kB + 3);
  m.prefill(cache, 0, part(tokens, 0, 0, 4));
  m.prefill(cache, 1, part(tokens, 1, 0, 4));
  decode(m, cache, tokens, 4);
  auto logits = read(m, cache);
  logits.resize(kB * kV);
  EXPECT_LT(testing::relative_l2(logits, logits_at(all, 4)), tolerance());
  EXPECT_EQ(cache.position(2), 0);
}

TEST_P(Decode, TrainingModelsDecodeToo) {
  const auto tokens = testing::random_batch(kV, kB * kT, 3).tokens;
  TransformerOptions o;
  o.micro_batch = kB;
  o.seq_len = 5;
  o.dtype = GetParam();
  Transformer m = testing::make_model(kConfig, o);
  KvCache cache = m.make_cache(kB);
  for (std::int64_t b = 0; b < kB; ++b) m.prefill(cache, b, part(tokens, b, 0, kT));
  EXPECT_LT(testing::relative_l2(read(m, cache), logits_at(full_logits(tokens), kT - 1)),
            tolerance());
}

TEST_P(Decode, RefusesWhatDoesNotFit) {
  using testing::expect_error;
  Transformer m = model(kB, 2);
  EXPECT_THROW(m.make_cache(0), Error);
  EXPECT_THROW(m.make_cache(1, 21), Error);
  KvCache cache = m.make_cache(kB, 4);
  const auto prefill = [&](std::int64_t row, const std::vector<std::int32_t>& tokens) {
    m.prefill(cache, row, tokens);
  };
  expect_error(ErrorKind::kInput, "at most the 4", [&] { prefill(0, {1, 1, 1, 1, 1}); });
  expect_error(ErrorKind::kInput, "at least one", [&] { prefill(0, {}); });
  expect_error(ErrorKind::kInput, "got 97 in row 0, position 1", [&] { prefill(0, {1, 97}); });
  expect_error(ErrorKind::kInput, "row: expected 0 to 1, got 2", [&] { prefill(2, {1}); });
  KvCache other(Device::open({.threads = 1}), ModelConfig::gpt2(1, 3, 39, 20, 97), GetParam(), kB);
  expect_error(ErrorKind::kInput, "layer",
               [&] { m.prefill(other, 0, std::vector<std::int32_t>{1}); });
  std::vector<float> logits(kV);
  expect_error(ErrorKind::kInput, "logits", [&] { m.read_logits(logits, cache); });
  EXPECT_EQ(cache.position(0), 0);

  prefill(1, {1, 1, 1, 1});
  const Buffer memory(m.stream().device(), 64);
  const auto ids = [&](std::int64_t rows, DType dtype = DType::kI32) {
    return Tensor(memory.data(), dtype, {rows});
  };
  expect_error(ErrorKind::kInput, "room for a token in row 1, got one that holds 4",
               [&] { m.decode(cache, ids(2)); });
  expect_error(ErrorKind::kInput, "expected i32 of 1 to 2 rows, got i32 of 3",
               [&] { m.decode(cache, ids(3)); });
  expect_error(ErrorKind::kInput, "got f32 of 2", [&] { m.decode(cache, ids(2, DType::kF32)); });
  KvCache wide = m.make_cache(kB * 2 + 1);  // more rows than B·T of the plan
  expect_error(ErrorKind::kInput, "1 to 4 rows", [&] { m.decode(wide, ids(5)); });
  EXPECT_EQ(cache.position(0), 0);
  m.decode(cache, ids(1));
  EXPECT_EQ(cache.position(0), 1);
}

}  // namespace
}  // namespace llmc
