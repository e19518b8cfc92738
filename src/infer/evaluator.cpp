#include "llmc/infer/evaluator.h"

#include <cmath>
#include <limits>

#include "llmc/core/error.h"
#include "llmc/data/dataloader.h"

namespace llmc {

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

Evaluation Evaluator::run(BatchSource& source, std::int64_t max_batches) {
  const std::int64_t epoch = source.batches_per_epoch();
  if (max_batches < 0) {
    fail(ErrorKind::kInput, "evaluator", "max_batches: expected 0 or more, got ", max_batches);
  }
  if (max_batches == 0 && epoch == 0) {
    fail(ErrorKind::kInput, "evaluator",
         "max_batches: expected at least 1 for a source without end, got 0");
  }
  std::int64_t batches = max_batches;
  if (epoch > 0 && (batches == 0 || batches > epoch)) batches = epoch;
  source.reset();
  Evaluation result;
  Batch batch;
  for (std::int64_t i = 0; i < batches; ++i) {
    source.next(batch);
    const LossSum sum = model_.evaluate(batch.inputs, batch.targets, source.B(), source.T());
    result.loss_sum += sum.loss_sum;
    result.counted_tokens += sum.counted_tokens;
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

}  // namespace llmc
