#pragma once

#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"
#include "llmc/ops/step.h"

namespace llmc {

// Cross-entropy over rows of logits, in log-sum-exp form: finite for any logits up to 10^38 in
// magnitude. R rows of Vp columns, of which the first V are the vocabulary, at most 10^6; f32 or
// bf16. targets: (R) i32, below V, or −1 for rows that do not count. For any other target the CPU
// backend throws an input error; a GPU backend, which cannot look at them in time, makes the loss
// of the row NaN.

/// losses[r] = logsumexp(logits[r, :V]) − logits[r, target], 0 where the target is −1; adds them
/// and their count to block->loss_sum and counted_tokens. losses: (R) f32; logits: (R, Vp); block
/// may be null.
void cross_entropy_forward(Stream& stream, const Tensor& losses, const Tensor& logits,
                           const Tensor& targets, std::int64_t vocab_size,
                           StepBlock* block /*device*/);

/// The same, and in the same pass overwrites logits by their gradient
/// dloss · (softmax(logits[r, :V]) − onehot(target)), zeros in the padding columns and in rows that
/// do not count.
void cross_entropy_backward(Stream& stream, const Tensor& losses, const Tensor& logits,
                            const Tensor& targets, std::int64_t vocab_size, float dloss,
                            StepBlock* block /*device*/);

}  // namespace llmc
