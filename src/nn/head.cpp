#include "llmc/nn/head.h"

#include <algorithm>

#include "llmc/core/error.h"
#include "llmc/ops/linear.h"
#include "llmc/ops/loss.h"

namespace llmc {

namespace {

/// Rows of a chunk, at most `most`, so that chunks are as equal as possible; where a few more
/// chunks make all of them whole tiles of the matrix product, that many.
std::int64_t even_chunk(std::int64_t rows, std::int64_t most) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t fewest = (rows + most - 1) / most;
  for (std::int64_t chunks = fewest; chunks <= 2 * fewest; ++chunks) {
    if (rows % (chunks * kTile) == 0) return rows / chunks;
  }
  return (rows + fewest - 1) / fewest;
}

}  // namespace

LmHead::LmHead(LayerPlan& plan, ParameterSet::Id weight, std::int64_t vocab_size,
               std::int64_t chunk_bytes)
    : weight_(weight),
      vocab_size_(vocab_size),
      padded_vocab_size_(plan.parameters.table()[weight].shape.dim(0)) {
  if (vocab_size < 1 || vocab_size > padded_vocab_size_) {
    fail(ErrorKind::kConfig, "head", "vocab_size: expected 1 to ", padded_vocab_size_,
         ", the rows of the weight, got ", vocab_size);
  }
  if (chunk_bytes < 1) {
    fail(ErrorKind::kConfig, "head", "chunk_bytes: expected a positive number, got ", chunk_bytes);
  }
  const std::int64_t row_bytes =
      padded_vocab_size_ * static_cast<std::int64_t>(size_of(plan.dtype()));
  const std::int64_t most = std::clamp<std::int64_t>(chunk_bytes / row_bytes, 1, plan.rows());
  chunk_rows_ = even_chunk(plan.rows(), most);
  logits_ = plan.activations.overlay("logits", plan.dtype(), {chunk_rows_, padded_vocab_size_});
}

Tensor LmHead::chunk_logits(const LayerContext& context, std::int64_t rows) const {
  return context.activations.get(logits_, {rows, padded_vocab_size_});
}

void LmHead::logits(const LayerContext& context, const Tensor& logits, const Tensor& hidden) const {
  linear_forward(context.stream, logits, hidden, context.parameters.value(weight_), {});
}

void LmHead::forward(const LayerContext& context, const Tensor& losses, const Tensor& hidden,
                     const Tensor& targets, StepBlock* block) const {
  const std::int64_t rows = hidden.dim(0);
  for (std::int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const std::int64_t end = std::min(rows, begin + chunk_rows_);
    const Tensor chunk = chunk_logits(context, end - begin);
    logits(context, chunk, hidden.rows(begin, end));
    cross_entropy_forward(context.stream, losses.rows(begin, end), chunk, targets.rows(begin, end),
                          vocab_size_, block);
  }
}

void LmHead::forward_backward(const LayerContext& context, const Tensor& losses,
                              const Tensor& dhidden, const Tensor& hidden, const Tensor& targets,
                              float dloss, StepBlock* block) const {
  const std::int64_t rows = hidden.dim(0);
  for (std::int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const std::int64_t end = std::min(rows, begin + chunk_rows_);
    const Tensor chunk = chunk_logits(context, end - begin);
    const Tensor in = hidden.rows(begin, end);
    logits(context, chunk, in);
    cross_entropy_backward(context.stream, losses.rows(begin, end), chunk, targets.rows(begin, end),
                           vocab_size_, dloss, block);
    // The weight first: dhidden may overwrite hidden.
    linear_backward_weight(context.stream, context.parameters.gradient(weight_), {}, chunk, in,
                           context.accumulate || begin > 0);
    linear_backward_input(context.stream, dhidden.rows(begin, end), chunk,
                          context.parameters.value(weight_));
  }
}

}  // namespace llmc
