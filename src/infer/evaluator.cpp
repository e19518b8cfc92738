#include "llmc/infer/evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "comm/gather.h"
#include "llmc/core/error.h"
#include "llmc/data/dataloader.h"

namespace llmc {
namespace {

std::int64_t counted(std::span<const std::int32_t> targets) {
  return std::ssize(targets) - std::count(targets.begin(), targets.end(), kIgnoredTarget);
}

/// The first rows of a batch that have `wanted` counted targets; all, if they have fewer.
std::int64_t rows_for(const Batch& batch, std::int64_t T, std::int64_t wanted) {
  const std::int64_t rows = std::ssize(batch.targets) / T;
  for (std::int64_t row = 0; row < rows; ++row) {
    wanted -= counted(std::span(batch.targets)
                          .subspan(static_cast<std::size_t>(row * T), static_cast<std::size_t>(T)));
    if (wanted <= 0) return row + 1;
  }
  return rows;
}

/// The sum of what all ranks pass, added in order of rank.
double sum_over_ranks(Communicator& ranks, Stream& stream, double own) {
  const auto parts = gather_values<double>(ranks, stream, std::span(&own, 1));
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

}  // namespace

double Evaluation::mean_loss() const {
  if (counted_tokens == 0) return std::numeric_limits<double>::quiet_NaN();
  return loss_sum / static_cast<double>(counted_tokens);
}

double Evaluation::perplexity() const {
  return std::exp(mean_loss());
}

double Evaluation::bits_per_byte(double bytes_per_token) const {
  return mean_loss() / std::log(2.0) / bytes_per_token;
}

Evaluation Evaluator::run(BatchSource& source, std::int64_t max_tokens, Communicator* ranks) {
  const std::int64_t epoch = source.batches_per_epoch();
  if (max_tokens < 0) {
    fail(ErrorKind::kInput, "evaluator", "max_tokens: expected 0 or more, got ", max_tokens);
  }
  if (max_tokens == 0 && epoch == 0) {
    fail(ErrorKind::kInput, "evaluator",
         "max_tokens: expected at least 1 for a source without end, got 0");
  }
  const std::int64_t T = source.T();
  source.reset();
  Evaluation result;
  Batch batch;
  for (std::int64_t i = 0; epoch == 0 || i < epoch; ++i) {
    if (max_tokens > 0 && result.counted_tokens >= max_tokens) break;
    source.next(batch);
    const std::int64_t B =
        max_tokens == 0 ? source.B() : rows_for(batch, T, max_tokens - result.counted_tokens);
    const auto count = static_cast<std::size_t>(B * T);
    const auto targets = std::span<const std::int32_t>(batch.targets).first(count);
    result.counted_tokens += counted(targets);
    if (ranks && i % ranks->size() != ranks->rank()) continue;
    result.loss_sum +=
        model_.evaluate(std::span(batch.inputs).first(count), targets, B, T).loss_sum;
  }
  if (ranks && ranks->size() > 1) {
    result.loss_sum = sum_over_ranks(*ranks, model_.stream(), result.loss_sum);
  }
  return result;
}

Evaluation Evaluator::run(const std::vector<std::filesystem::path>& token_files,
                          std::int64_t seq_len) {
  DataLoaderOptions options;
  options.B = model_.options().micro_batch;
  options.T = seq_len == 0 ? model_.options().seq_len : seq_len;
  options.tail = Tail::kPad;
  options.vocab_size = model_.config().vocab_size;
  DataLoader loader(token_files, options);
  return run(loader);
}

Evaluation Evaluator::run(std::span<const std::int32_t> tokens, std::int64_t seq_len) {
  const std::int64_t T = seq_len == 0 ? model_.options().seq_len : seq_len;
  if (T < 1 || T > model_.options().seq_len) {
    fail(ErrorKind::kInput, "evaluator", "seq_len: expected 0 to the model's ",
         model_.options().seq_len, ", got ", seq_len);
  }
  const std::int64_t targets_in_all = std::max<std::int64_t>(0, std::ssize(tokens) - 1);
  const std::int64_t rows_in_all = (targets_in_all + T - 1) / T;
  Evaluation result;
  Batch batch;
  for (std::int64_t row = 0; row < rows_in_all;) {
    const std::int64_t B = std::min(model_.options().micro_batch, rows_in_all - row);
    const std::int64_t begin = row * T;
    const std::int64_t count = std::min(B * T, targets_in_all - begin);
    batch.inputs.assign(static_cast<std::size_t>(B * T), 0);
    batch.targets.assign(batch.inputs.size(), kIgnoredTarget);
    std::copy_n(tokens.begin() + begin, count, batch.inputs.begin());
    std::copy_n(tokens.begin() + begin + 1, count, batch.targets.begin());
    const LossSum sum = model_.evaluate(batch.inputs, batch.targets, B, T);
    result.loss_sum += sum.loss_sum;
    result.counted_tokens += sum.counted_tokens;
    row += B;
  }
  return result;
}

}  // namespace llmc
