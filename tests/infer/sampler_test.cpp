#include "llmc/infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "llmc/core/error.h"
#include "nn/tiny_model.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

/// How often each token comes out over evenly spaced draws.
std::vector<double> frequencies(const std::vector<float>& logits, const SampleOptions& options) {
  constexpr int kDraws = 20000;
  std::vector<double> counts(logits.size(), 0.0);
  std::vector<std::int32_t> order;
  for (int i = 0; i < kDraws; ++i) {
    const auto token = pick_token(logits, options, (i + 0.5) / kDraws, order);
    counts[static_cast<std::size_t>(token)] += 1.0 / kDraws;
  }
  return counts;
}

std::vector<double> softmax(std::vector<double> logits) {
  double sum = 0;
  for (double& logit : logits) sum += logit = std::exp(logit);
  for (double& logit : logits) logit /= sum;
  return logits;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-4) << i;
}

const std::vector<float> kLogits = {0.5f, 2.0f, -1.0f, 1.0f, 2.0f};

TEST(PickToken, FollowsTheDistribution) {
  expect_near(frequencies(kLogits, {}), softmax({0.5, 2, -1, 1, 2}));
  expect_near(frequencies(kLogits, {.temperature = 0.5f}), softmax({1, 4, -2, 2, 4}));
  const double kNone = -1e9;
  expect_near(frequencies(kLogits, {.top_k = 3}), softmax({kNone, 2, kNone, 1, 2}));
  expect_near(frequencies(kLogits, {.top_k = 99}), softmax({0.5, 2, -1, 1, 2}));
  // The two likeliest have 0.74 together, with the third 0.88.
  expect_near(frequencies(kLogits, {.top_p = 0.7f}), softmax({kNone, 2, kNone, kNone, 2}));
  expect_near(frequencies(kLogits, {.top_p = 0.8f}), softmax({kNone, 2, kNone, 1, 2}));
  expect_near(frequencies(kLogits, {.top_p = 1e-6f}), {0, 1, 0, 0, 0});
  // top_p of what top_k left: 0.42 each, then 0.16.
  expect_near(frequencies(kLogits, {.top_k = 3, .top_p = 0.83f}),
              softmax({kNone, 2, kNone, kNone, 2}));
}

TEST(PickToken, GreedyTakesTheFirstOfTheLikeliest) {
  std::vector<std::int32_t> order;
  for (const double u : {0.0, 0.5, 0.999}) {
    EXPECT_EQ(pick_token(kLogits, {.temperature = 0.0f}, u, order), 1);
    EXPECT_EQ(pick_token(kLogits, {.top_k = 1}, u, order), 1);
  }
}

TEST(PickToken, ExtremesStayFinite) {
  std::vector<std::int32_t> order;
  const std::vector<float> far = {-3e38f, 3e38f, 0.0f};
  EXPECT_EQ(pick_token(far, {.temperature = 1e-30f}, 0.9999, order), 1);
  EXPECT_EQ(pick_token(far, {.temperature = 1e30f}, 0.0, order), 1);
  EXPECT_EQ(pick_token(std::vector<float>{7.0f}, {}, 0.999, order), 0);
}

TEST(PickToken, RefusesBadInput) {
  std::vector<std::int32_t> order;
  expect_error(ErrorKind::kInput, "finite", [&] {
    pick_token(std::vector<float>{1.0f, std::numeric_limits<float>::quiet_NaN()}, {}, 0, order);
  });
  expect_error(ErrorKind::kInput, "finite", [&] {
    pick_token(std::vector<float>{1.0f, HUGE_VALF}, {}, 0, order);
  });
  expect_error(ErrorKind::kInput, "logits", [&] { pick_token({}, {}, 0, order); });
  const auto refused = [](const char* name, const SampleOptions& options) {
    expect_error(ErrorKind::kConfig, name, [&] { validate(options); });
  };
  refused("temperature", {.temperature = -1.0f});
  refused("temperature", {.temperature = HUGE_VALF});
  refused("temperature", {.temperature = std::nanf("")});
  refused("vocab_size", {.vocab_size = -1});
  refused("top_k", {.top_k = -1});
  refused("top_p", {.top_p = 0.0f});
  refused("top_p", {.top_p = 1.5f});
  refused("top_p", {.top_p = std::nanf("")});
}

constexpr std::int64_t kV = 97, kBlock = 12;

Transformer tiny(std::int64_t seq_len = 0) {
  TransformerOptions options;
  options.seq_len = seq_len;
  options.training = false;
  return testing::make_model(ModelConfig::gpt2(2, 3, 39, kBlock, kV), options);
}

/// The likeliest next token, by a forward pass over everything.
std::int32_t likeliest(Transformer& model, const std::vector<std::int32_t>& context) {
  std::vector<float> logits(context.size() * kV);
  model.logits(logits, context, 1, static_cast<std::int64_t>(context.size()));
  const auto last = logits.end() - kV;
  return static_cast<std::int32_t>(std::max_element(last, logits.end()) - last);
}

TEST(Sampler, GreedyFollowsTheForwardPassPastTheBlock) {
  Transformer model = tiny();
  Sampler sampler(model, {.temperature = 0.0f});
  const std::vector<std::int32_t> prompt = {5, 60, 7};
  constexpr std::int64_t kNew = 40;
  const auto got = sampler.generate(prompt, kNew);
  ASSERT_EQ(got.size(), static_cast<std::size_t>(kNew));
  std::vector<std::int32_t> context = prompt;
  for (std::size_t n = 0; n < got.size(); ++n) {
    if (context.size() > kBlock) context.erase(context.begin(), context.end() - kBlock / 2);
    ASSERT_EQ(got[n], likeliest(model, context)) << n;
    context.push_back(got[n]);
  }
}

TEST(Sampler, LongPromptsKeepTheirEnd) {
  Transformer model = tiny();
  Sampler sampler(model, {.temperature = 0.0f});
  const auto prompt = testing::random_batch(kV, 30, 4).tokens;
  const std::vector<std::int32_t> end(prompt.end() - kBlock / 2, prompt.end());
  EXPECT_EQ(sampler.generate(prompt, 5), sampler.generate(end, 5));
  const std::vector<std::int32_t> whole(prompt.begin(), prompt.begin() + kBlock);
  EXPECT_EQ(sampler.generate(whole, 1)[0], likeliest(model, whole));
}

TEST(Sampler, ShortPlannedLengthGivesTheSame) {
  Transformer model = tiny(), narrow = tiny(5);
  const auto prompt = testing::random_batch(kV, 11, 4).tokens;
  const SampleOptions options{.seed = 3};
  EXPECT_EQ(Sampler(model, options).generate(prompt, 30),
            Sampler(narrow, options).generate(prompt, 30));
}

TEST(Sampler, SamplesDependOnSeedAndNumberOnly) {
  Transformer model = tiny();
  Sampler sampler(model, {.seed = 1}), other(model, {.seed = 2});
  const std::vector<std::int32_t> prompt = {1, 2};
  const auto first = sampler.generate(prompt, 20, {}, 0);
  const auto second = sampler.generate(prompt, 20, {}, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(sampler.generate(prompt, 20, {}, 0), first);
  EXPECT_NE(other.generate(prompt, 20, {}, 0), first);
  EXPECT_EQ(Sampler(model, {.seed = 1}).generate(prompt, 20, {}, 1), second);
}

TEST(Sampler, DrawsNoIdBeyondTheVocabularyAskedFor) {
  Transformer model = tiny();
  const std::vector<std::int32_t> prompt = {1, 2};
  const auto highest = [&](const SampleOptions& options) {
    const auto ids = Sampler(model, options).generate(prompt, 200);
    return *std::max_element(ids.begin(), ids.end());
  };
  EXPECT_GE(highest({.seed = 1}), 11);
  EXPECT_LT(highest({.vocab_size = 11, .seed = 1}), 11);
  EXPECT_EQ(highest({.vocab_size = 1000, .seed = 1}), highest({.seed = 1}));
}

TEST(Sampler, StreamsAndStops) {
  Transformer model = tiny();
  Sampler sampler(model, {.seed = 1});
  const std::vector<std::int32_t> prompt = {1, 2};
  const auto all = sampler.generate(prompt, 20);
  std::vector<std::int32_t> streamed;
  const auto part = sampler.generate(prompt, 20, [&](std::int32_t token) {
    streamed.push_back(token);
    return streamed.size() < 7;
  });
  EXPECT_EQ(part, streamed);
  EXPECT_EQ(part, std::vector<std::int32_t>(all.begin(), all.begin() + 7));

  const std::int32_t stop = all[4];
  const auto first = std::find(all.begin(), all.end(), stop);
  Sampler stopping(model, {.seed = 1, .end_of_text = stop});
  EXPECT_EQ(stopping.generate(prompt, 20), std::vector<std::int32_t>(all.begin(), first + 1));
  EXPECT_EQ(stopping.generate({}, 3), stopping.generate(std::vector<std::int32_t>{stop}, 3));
  EXPECT_TRUE(sampler.generate(prompt, 0).empty());
}

TEST(Sampler, RefusesBadInput) {
  Transformer model = tiny();
  Sampler sampler(model, {});
  expect_error(ErrorKind::kInput, "prompt", [&] { sampler.generate({}, 3); });
  expect_error(ErrorKind::kInput, "max_new_tokens",
               [&] { sampler.generate(std::vector<std::int32_t>{1}, -1); });
  expect_error(ErrorKind::kInput, "tokens",
               [&] { sampler.generate(std::vector<std::int32_t>{97}, 1); });
  expect_error(ErrorKind::kConfig, "end_of_text", [&] { Sampler(model, {.end_of_text = 97}); });
  expect_error(ErrorKind::kConfig, "top_p", [&] { Sampler(model, {.top_p = 2.0f}); });
}

}  // namespace
}  // namespace llmc
