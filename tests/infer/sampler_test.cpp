#include "llmc/infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/core/error.h"
#include "nn/tiny_model.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

TEST(SampleOptions, AreValidated) {
  const auto refused = [](const char* name, const SampleOptions& options) {
    expect_error(ErrorKind::kConfig, name, [&] { validate(options); });
  };
  validate({});
  validate({.temperature = 0.0f});
  refused("temperature", {.temperature = -1.0f});
  refused("vocab_size", {.vocab_size = -1});
  refused("top_k", {.top_k = -1});
  refused("top_p", {.top_p = 0.0f});
  refused("min_p", {.min_p = 2.0f});
  refused("repetition_penalty", {.repetition_penalty = 0.0f});
  refused("top_k: expected none with temperature 0", {.temperature = 0.0f, .top_k = 3});
  refused("top_p: expected none with temperature 0", {.temperature = 0.0f, .top_p = 0.5f});
  refused("min_p: expected none with temperature 0", {.temperature = 0.0f, .min_p = 0.5f});
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

TEST(Sampler, PromptsOfTheWholeContextGoOn) {
  Transformer model = tiny();
  Sampler sampler(model, {.temperature = 0.0f});
  const auto prompt = testing::random_batch(kV, kBlock, 4).tokens;
  const auto got = sampler.generate(prompt, 2);
  EXPECT_EQ(got[0], likeliest(model, prompt));
  std::vector<std::int32_t> end(prompt.end() - kBlock / 2 + 1, prompt.end());
  end.push_back(got[0]);
  EXPECT_EQ(got[1], likeliest(model, end));
}

/// Prompts of different lengths, one of them the whole context, and two equal ones.
std::vector<Sampler::Tokens> some_prompts() {
  std::vector<Sampler::Tokens> prompts;
  for (const std::int64_t length : {3, 12, 1, 5, 5}) {
    prompts.push_back(testing::random_batch(kV, length, static_cast<std::uint32_t>(length)).tokens);
  }
  return prompts;
}

TEST(Sampler, RowsOfABatchSayWhatEachSaysAlone) {
  Transformer model = tiny();
  const auto prompts = some_prompts();
  constexpr std::int64_t kNew = 40, kFirst = 7;
  for (const SampleOptions& options :
       {SampleOptions{.temperature = 0.0f},
        {.seed = 3},
        {.repetition_penalty = 1.5f, .temperature = 0.7f, .top_k = 20, .top_p = 0.9f}}) {
    Sampler sampler(model, options, 6), alone(model, options);
    const auto together = sampler.generate_batch(prompts, kNew, {}, kFirst);
    ASSERT_EQ(together.size(), prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(together[i],
                alone.generate(prompts[i], kNew, {}, kFirst + static_cast<std::int64_t>(i)))
          << i;
    }
    EXPECT_EQ(sampler.generate_batch(prompts, kNew, {}, kFirst), together);
  }
}

TEST(Sampler, RowsEndEachOnTheirOwn) {
  Transformer model = tiny();
  const auto prompts = some_prompts();
  const auto all = Sampler(model, {.seed = 1}, 5).generate_batch(prompts, 30);
  const std::int32_t stop = all[2][4];
  Sampler sampler(model, {.seed = 1, .end_of_text = stop}, 5);
  std::vector<Sampler::Tokens> streamed(5);
  const auto got = sampler.generate_batch(prompts, 30, [&](std::size_t row, std::int32_t token) {
    streamed[row].push_back(token);
    return row != 0 || streamed[0].size() < 3;
  });
  EXPECT_EQ(got, streamed);
  for (std::size_t i = 0; i < got.size(); ++i) {
    auto expected = all[i];
    const auto end = std::find(expected.begin(), expected.end(), stop);
    if (end != expected.end()) expected.erase(end + 1, expected.end());
    if (i == 0) expected.resize(std::min<std::size_t>(expected.size(), 3));
    EXPECT_EQ(got[i], expected) << i;
  }
}

TEST(Sampler, ThePenaltyForbidsRepetition) {
  Transformer model = tiny();
  const std::vector<std::int32_t> prompt = {1, 2};
  const auto got =
      Sampler(model, {.repetition_penalty = 1e9f, .temperature = 0.0f}).generate(prompt, 20);
  std::vector<std::int32_t> all = prompt;
  all.insert(all.end(), got.begin(), got.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
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

TEST(Sampler, SaysThatAModelHasDiverged) {
  Transformer model = tiny();
  const ParameterSet& parameters = model.parameters();
  const Tensor norm = parameters.value(parameters.table().size() - 1);  // the final norm's bias
  testing::write_values(model.stream(), norm,
                        std::vector<float>(static_cast<std::size_t>(norm.numel()), std::nanf("")));
  Sampler sampler(model, {});
  expect_error(ErrorKind::kInput, "diverged",
               [&] { sampler.generate(std::vector<std::int32_t>{1}, 3); });
}

TEST(Sampler, RefusesBadInput) {
  Transformer model = tiny();
  Sampler sampler(model, {});
  expect_error(ErrorKind::kInput, "prompt", [&] { sampler.generate({}, 3); });
  expect_error(ErrorKind::kInput, "max_new_tokens",
               [&] { sampler.generate(std::vector<std::int32_t>{1}, -1); });
  expect_error(ErrorKind::kInput, "tokens",
               [&] { sampler.generate(std::vector<std::int32_t>{97}, 1); });
  expect_error(ErrorKind::kInput, "prompt: expected at most the 12 tokens",
               [&] { sampler.generate(testing::random_batch(kV, 13, 1).tokens, 1); });
  const std::vector<Sampler::Tokens> two = {{1}, {2}};
  expect_error(ErrorKind::kInput, "prompts: expected 1 to 1",
               [&] { sampler.generate_batch(two, 1); });
  expect_error(ErrorKind::kInput, "prompts", [&] { sampler.generate_batch({}, 1); });
  expect_error(ErrorKind::kConfig, "batch", [&] { Sampler(model, {}, 0); });
  expect_error(ErrorKind::kConfig, "end_of_text", [&] { Sampler(model, {.end_of_text = 97}); });
  expect_error(ErrorKind::kConfig, "top_p", [&] { Sampler(model, {.top_p = 2.0f}); });
}

}  // namespace
}  // namespace llmc
