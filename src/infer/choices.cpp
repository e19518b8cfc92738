// Multiple choice: which ending of a text a model finds likeliest.

#include <algorithm>
#include <cmath>

#include "llmc/core/error.h"
#include "llmc/infer/evaluator.h"
#include "llmc/ops/linear.h"

namespace llmc {
namespace {

/// Rows of a batch are padded to a multiple of this, so that batches have few different sizes.
constexpr std::int64_t kLengthStep = 8;

/// The first of the largest.
std::int32_t best(const std::vector<double>& scores) {
  return static_cast<std::int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

/// What stands for a prediction from scores that are no numbers.
constexpr ChoicePrediction kNoPrediction{-1, -1, -1};

ChoicePrediction predict(const ChoiceExample& example, const std::vector<double>& scores) {
  const bool finite =
      std::all_of(scores.begin(), scores.end(), [](double score) { return std::isfinite(score); });
  if (!finite) return kNoPrediction;
  std::vector<double> per_character, per_token;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const ChoiceEnding& ending = example.endings[i];
    if (ending.characters > 0) {
      per_character.push_back(scores[i] / static_cast<double>(ending.characters));
    }
    per_token.push_back(scores[i] / static_cast<double>(ending.tokens.size()));
  }
  const bool known = per_character.size() == scores.size();
  return {best(scores), known ? best(per_character) : -1, best(per_token)};
}

/// Fills in the predictions of the other ranks. own(i): whether this one made prediction i.
template <class Own>
void exchange(Stream& stream, std::span<ChoicePrediction> predictions, Communicator& ranks,
              const Own& own) {
  // Small integers are exact in fp32, and the others add zeros.
  std::vector<float> values;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const ChoicePrediction& p = predictions[i];
    for (const std::int32_t number : {p.by_sum, p.by_character, p.by_token}) {
      values.push_back(own(i) ? static_cast<float>(number) : 0.0f);
    }
  }
  const Buffer memory(stream.device(), values.size() * sizeof(float));
  const Tensor sums(memory.data(), DType::kF32, {std::ssize(values)});
  copy_from_host(stream, sums, values.data());
  ranks.all_reduce(stream, sums);
  copy_to_host(stream, values.data(), sums);
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const auto number = [&](std::size_t j) { return static_cast<std::int32_t>(values[3 * i + j]); };
    predictions[i] = {number(0), number(1), number(2)};
  }
}

}  // namespace

/// A context and one of its endings, as inputs and targets.
struct Evaluator::ChoiceRow {
  std::vector<std::int32_t> tokens;  // one more than the inputs
  std::int64_t counted;              // the last targets, which are the ending's
  double* score;                     // where its log-probability goes

  std::int64_t length() const { return std::ssize(tokens) - 1; }
};

ChoiceAccuracy accuracy_of(std::span<const ChoiceExample> examples,
                           std::span<const ChoicePrediction> predictions) {
  if (examples.size() != predictions.size() || examples.empty()) {
    fail(ErrorKind::kInput, "choices", "expected a prediction for each of at least one example, ",
         "got ", predictions.size(), " for ", examples.size());
  }
  std::int64_t sum = 0, character = 0, token = 0;
  bool known = true;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    const ChoicePrediction& p = predictions[i];
    sum += p.by_sum == examples[i].label;
    character += p.by_character == examples[i].label;
    token += p.by_token == examples[i].label;
    known &= p.by_character >= 0;
  }
  const auto count = static_cast<double>(examples.size());
  ChoiceAccuracy result;
  result.examples = std::ssize(examples);
  result.acc = static_cast<double>(sum) / count;
  if (known) result.acc_norm = static_cast<double>(character) / count;
  result.acc_token = static_cast<double>(token) / count;
  return result;
}

/// Scores rows of descending length.
void Evaluator::score(std::span<ChoiceRow> rows) {
  const UntimedMatmuls untimed(model_.stream());
  const TransformerOptions& options = model_.options();
  std::vector<std::int32_t> inputs, targets;
  std::vector<float> losses;
  while (!rows.empty()) {
    const std::int64_t rounded =
        (rows.front().length() + kLengthStep - 1) / kLengthStep * kLengthStep;
    const std::int64_t T = std::min(rounded, options.seq_len);
    const std::int64_t B =
        std::min(options.micro_batch * options.seq_len / T, static_cast<std::int64_t>(rows.size()));
    inputs.assign(static_cast<std::size_t>(B * T), 0);
    targets.assign(inputs.size(), kIgnoredTarget);
    losses.resize(inputs.size());
    for (std::int64_t b = 0; b < B; ++b) {
      const ChoiceRow& row = rows[static_cast<std::size_t>(b)];
      const std::int64_t n = row.length();
      std::copy_n(row.tokens.begin(), n, inputs.begin() + b * T);
      std::copy_n(row.tokens.end() - row.counted, row.counted,
                  targets.begin() + b * T + n - row.counted);
    }
    model_.evaluate(inputs, targets, B, T, losses);
    for (std::int64_t b = 0; b < B; ++b) {
      const ChoiceRow& row = rows[static_cast<std::size_t>(b)];
      const auto end = losses.begin() + b * T + row.length();
      *row.score = 0;
      for (auto loss = end - row.counted; loss < end; ++loss) *row.score -= *loss;
    }
    rows = rows.subspan(static_cast<std::size_t>(B));
  }
}

std::vector<ChoicePrediction> Evaluator::choose(std::span<const ChoiceExample> examples,
                                                Communicator* ranks) {
  const std::int64_t T = model_.options().seq_len;
  check_choices(examples, model_.config().vocab_size, T);
  const auto size = static_cast<std::size_t>(ranks ? ranks->size() : 1);
  const auto rank = static_cast<std::size_t>(ranks ? ranks->rank() : 0);
  const auto own = [&](std::size_t i) { return i % size == rank; };

  std::vector<std::vector<double>> scores(examples.size());
  std::vector<ChoiceRow> rows;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    if (!own(i)) continue;
    const ChoiceExample& example = examples[i];
    scores[i].resize(example.endings.size());
    for (std::size_t j = 0; j < scores[i].size(); ++j) {
      std::vector<std::int32_t> tokens = example.context;
      const std::vector<std::int32_t>& ending = example.endings[j].tokens;
      tokens.insert(tokens.end(), ending.begin(), ending.end());
      if (std::ssize(tokens) > T + 1) tokens.erase(tokens.begin(), tokens.end() - (T + 1));
      rows.push_back({std::move(tokens), std::ssize(ending), &scores[i][j]});
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ChoiceRow& a, const ChoiceRow& b) { return a.length() > b.length(); });
  score(rows);

  std::vector<ChoicePrediction> predictions(examples.size());
  for (std::size_t i = 0; i < examples.size(); ++i) {
    if (own(i)) predictions[i] = predict(examples[i], scores[i]);
  }
  if (ranks && size > 1) exchange(model_.stream(), predictions, *ranks, own);
  // Only now, so that no rank waits for one that has given up.
  for (const ChoicePrediction& prediction : predictions) {
    if (prediction.by_sum != kNoPrediction.by_sum) continue;
    fail(ErrorKind::kInput, "choices",
         "expected finite log-probabilities, got others; the model has diverged");
  }
  return predictions;
}

}  // namespace llmc
