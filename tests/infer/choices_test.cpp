// Multiple choice, against a forward pass over each ending by itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/infer/evaluator.h"
#include "nn/tiny_model.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

constexpr std::int64_t kV = 97, kT = 24;

Transformer tiny(std::int64_t micro_batch, std::int64_t seq_len = kT) {
  TransformerOptions options;
  options.micro_batch = micro_batch;
  options.seq_len = seq_len;
  options.training = false;
  return testing::make_model(ModelConfig::gpt2(2, 3, 39, kT, kV), options);
}

/// Contexts and endings of many lengths, with 1 to 5 endings.
std::vector<ChoiceExample> some_examples(std::size_t count) {
  std::vector<ChoiceExample> examples(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto seed = static_cast<std::uint32_t>(100 * i);
    const auto length = [&](std::size_t n) { return static_cast<std::int64_t>(n); };
    examples[i].context = testing::random_batch(kV, length(1 + 7 * i % 15), seed + 1).tokens;
    for (std::size_t j = 0; j <= (i + 3) % 5; ++j) {
      const auto end_seed = seed + 2 + static_cast<std::uint32_t>(j);
      ChoiceEnding ending{testing::random_batch(kV, length(1 + (i + 3 * j) % 7), end_seed).tokens};
      ending.characters = length(1 + (5 * i + 2 * j) % 11);
      examples[i].endings.push_back(std::move(ending));
    }
    examples[i].label = static_cast<std::int64_t>(i % examples[i].endings.size());
  }
  return examples;
}

/// Log-probability of an ending from the logits of one row.
double score(Transformer& model, std::vector<std::int32_t> tokens, std::int64_t counted) {
  const std::int64_t n = std::ssize(tokens) - 1;
  std::vector<float> logits(static_cast<std::size_t>(n * kV));
  model.logits(logits, std::span(tokens).first(static_cast<std::size_t>(n)), 1, n);
  double sum = 0;
  for (std::int64_t t = n - counted; t < n; ++t) {
    const auto row = logits.begin() + t * kV;
    const double total = std::accumulate(
        row, row + kV, 0.0, [](double s, float x) { return s + std::exp(static_cast<double>(x)); });
    sum += row[tokens[static_cast<std::size_t>(t + 1)]] - std::log(total);
  }
  return sum;
}

std::vector<ChoicePrediction> expected_of(const std::vector<ChoiceExample>& examples) {
  Transformer model = tiny(1);
  std::vector<ChoicePrediction> out;
  for (const ChoiceExample& example : examples) {
    std::vector<double> sums, characters, tokens;
    for (const ChoiceEnding& ending : example.endings) {
      std::vector<std::int32_t> row = example.context;
      row.insert(row.end(), ending.tokens.begin(), ending.tokens.end());
      const auto n = std::ssize(ending.tokens);
      sums.push_back(score(model, row, n));
      characters.push_back(sums.back() / static_cast<double>(ending.characters));
      tokens.push_back(sums.back() / static_cast<double>(n));
    }
    const auto best = [](const std::vector<double>& x) {
      return static_cast<std::int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
    };
    out.push_back({best(sums), best(characters), best(tokens)});
  }
  return out;
}

void expect_equal(const std::vector<ChoicePrediction>& got,
                  const std::vector<ChoicePrediction>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].by_sum, expected[i].by_sum) << i;
    EXPECT_EQ(got[i].by_character, expected[i].by_character) << i;
    EXPECT_EQ(got[i].by_token, expected[i].by_token) << i;
  }
}

/// One of several ranks that run one after the other: sums grow from rank to rank, and the last one
/// has them whole.
class RankInTurn : public Communicator {
 public:
  RankInTurn(int rank, int size, std::vector<float>& sums)
      : rank_(rank), size_(size), sums_(sums) {}
  std::string_view name() const override { return "in turn"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier(Stream&) override {}

 private:
  void do_all_reduce(Stream& stream, const Tensor& values) override {
    const auto own = testing::read_values(stream, values);
    sums_.resize(own.size(), 0.0f);
    for (std::size_t i = 0; i < own.size(); ++i) sums_[i] += own[i];
    testing::write_values(stream, values, sums_);
  }
  void do_reduce_scatter(Stream&, const Tensor&, const Tensor&) override {}
  void do_all_gather(Stream&, const Tensor&, const Tensor&) override {}
  void do_broadcast(Stream&, const Tensor&, int) override {}

  int rank_, size_;
  std::vector<float>& sums_;
};

TEST(Choices, AreThoseOfEachEndingByItselfForAnyB) {
  const auto examples = some_examples(23);
  const auto expected = expected_of(examples);
  for (const std::int64_t B : {1, 2, 7, 40}) {
    Transformer model = tiny(B);
    expect_equal(Evaluator(model).choose(examples), expected);
  }
  // The three rules differ on this set.
  const auto differs = [&](auto a, auto b) {
    return std::any_of(expected.begin(), expected.end(),
                       [&](const ChoicePrediction& p) { return p.*a != p.*b; });
  };
  EXPECT_TRUE(differs(&ChoicePrediction::by_sum, &ChoicePrediction::by_character));
  EXPECT_TRUE(differs(&ChoicePrediction::by_sum, &ChoicePrediction::by_token));
}

TEST(Choices, AreSharedByAnyNumberOfRanks) {
  const auto examples = some_examples(10);
  const auto expected = expected_of(examples);
  Transformer model = tiny(3);
  for (const int size : {1, 2, 8, 13}) {
    std::vector<float> sums;
    std::vector<ChoicePrediction> last;
    for (int rank = 0; rank < size; ++rank) {
      RankInTurn ranks(rank, size, sums);
      last = Evaluator(model).choose(examples, &ranks);
    }
    expect_equal(last, expected);
  }
}

TEST(Choices, OfLongExamplesTheBeginningIsLeftOut) {
  auto examples = some_examples(4);
  auto shortened = examples;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    // One more than T inputs, and more.
    for (ChoiceEnding& ending : examples[i].endings) ending.tokens.resize(3, 5);
    shortened[i].endings = examples[i].endings;
    const auto context = testing::random_batch(kV, kT - 1 + static_cast<std::int64_t>(3 * i), 9);
    examples[i].context = context.tokens;
    shortened[i].context.assign(context.tokens.end() - (kT + 1 - 3), context.tokens.end());
  }
  Transformer model = tiny(2);
  expect_equal(Evaluator(model).choose(examples), expected_of(shortened));
}

TEST(Choices, AccuracyCountsRightOnes) {
  auto examples = some_examples(4);
  for (ChoiceExample& example : examples) example.label = 0;
  const std::vector<ChoicePrediction> predictions = {{0, 0, 1}, {0, 1, 1}, {0, 0, 0}, {1, 1, 1}};
  const ChoiceAccuracy a = accuracy_of(examples, predictions);
  EXPECT_EQ(a.examples, 4);
  EXPECT_DOUBLE_EQ(a.acc, 0.75);
  EXPECT_DOUBLE_EQ(a.acc_norm.value(), 0.5);
  EXPECT_DOUBLE_EQ(a.acc_token, 0.25);
  const std::vector<ChoicePrediction> unknown = {{0, 0, 1}, {0, -1, 1}, {0, 0, 0}, {1, 1, 1}};
  EXPECT_FALSE(accuracy_of(examples, unknown).acc_norm);
  expect_error(ErrorKind::kInput, "got 4 for 3",
               [&] { accuracy_of(std::span(examples).first(3), predictions); });
}

TEST(Choices, EndingsOfUnknownTextHaveNoLength) {
  auto examples = some_examples(2);
  examples[1].endings[0].characters = 0;
  Transformer model = tiny(2);
  const auto got = Evaluator(model).choose(examples);
  EXPECT_GE(got[0].by_character, 0);
  EXPECT_EQ(got[1].by_character, -1);
}

TEST(Choices, RefusesWhatTheModelCannotBeAsked) {
  Transformer model = tiny(2, 5);
  auto examples = some_examples(3);
  for (ChoiceExample& example : examples) {
    for (ChoiceEnding& ending : example.endings) ending.tokens.resize(2, 5);
  }
  Evaluator evaluator(model);
  evaluator.choose(examples);
  auto bad = examples;
  bad[1].context[0] = 97;
  expect_error(ErrorKind::kInput, "example 2: expected tokens below the 97 of the model, got 97",
               [&] { evaluator.choose(bad); });
  bad = examples;
  bad[2].endings[0].tokens[1] = -1;
  expect_error(ErrorKind::kInput, "example 3", [&] { evaluator.choose(bad); });
  bad = examples;
  bad[0].endings[1].tokens.resize(6, 1);
  expect_error(ErrorKind::kInput, "example 1: expected endings of at most 5 tokens",
               [&] { evaluator.choose(bad); });
}

}  // namespace
}  // namespace llmc
