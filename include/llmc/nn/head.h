#pragma once

#include <cstdint>

#include "llmc/nn/layer.h"
#include "llmc/ops/step.h"

namespace llmc {

/// Logits and loss: logits = hidden · weightᵀ, in chunks of rows, so that the logits of a whole
/// batch never exist unless asked for. N rows (B·T).
class LmHead {
 public:
  /// weight: (Vp, C), a parameter declared by another layer, of which the first vocab_size rows
  /// count. chunk_bytes bounds the memory of a chunk's logits; a chunk has at least one row.
  LmHead(LayerPlan& plan, ParameterSet::Id weight, std::int64_t vocab_size,
         std::int64_t chunk_bytes);

  /// Per chunk: logits, losses, dlogits in their place, dhidden, and the weight's gradient.
  /// losses: (N) f32; dhidden, hidden: (N, C), dhidden may be hidden; targets: (N) i32, −1 for rows
  /// that do not count; dloss: gradient of the sum of losses; block (device memory): receives the
  /// sum and count of losses.
  void forward_backward(const LayerContext& context, const Tensor& losses, const Tensor& dhidden,
                        const Tensor& hidden, const Tensor& targets, float dloss,
                        StepBlock* block) const;
  /// losses: (N) f32; hidden: (N, C); targets: (N) i32; block: may be null.
  void forward(const LayerContext& context, const Tensor& losses, const Tensor& hidden,
               const Tensor& targets, StepBlock* block) const;
  /// logits: (R, Vp), R at most chunk_rows(); hidden: (R, C).
  void logits(const LayerContext& context, const Tensor& logits, const Tensor& hidden) const;

  /// Rows of a chunk, and the memory for its logits: (rows, Vp).
  std::int64_t chunk_rows() const { return chunk_rows_; }
  Tensor chunk_logits(const LayerContext& context, std::int64_t rows) const;

 private:
  ParameterSet::Id weight_;
  std::int64_t vocab_size_;
  std::int64_t padded_vocab_size_;
  std::int64_t chunk_rows_;
  ActivationSet::Id logits_;
};

}  // namespace llmc
