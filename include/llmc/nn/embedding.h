#pragma once

#include <cstdint>
#include <string>

#include "llmc/nn/layer.h"

namespace llmc {

/// Token embedding plus, where `positions` > 0, learned positions.
class Embedding {
 public:
  /// Declares `wte` (Vp, C), whose rows from vocab_size on are padding and start as zero, and `wpe`
  /// (positions, C) under those names after `prefix`.
  Embedding(LayerPlan& plan, const std::string& prefix, std::int64_t vocab_size,
            std::int64_t padded_vocab_size, std::int64_t positions, std::int64_t channels,
            float stddev);

  /// The token embedding, for a head tied to it.
  ParameterSet::Id weight() const { return wte_; }

  /// out: (B, T, C); tokens: (B, T) i32, below vocab_size; token t stands at first_position + t.
  void forward(const LayerContext& context, const Tensor& out, const Tensor& tokens,
               std::int64_t first_position = 0) const;
  /// One token a row, at a position of its own. out: (B, 1, C); tokens: (B, 1) i32; positions: (B)
  /// i32.
  void forward_at(const LayerContext& context, const Tensor& out, const Tensor& tokens,
                  const Tensor& positions) const;
  /// Adds to the gradient of wte whatever context.accumulate says: a tied head wrote it before.
  /// Without such a head, zero that gradient first. dout: (B, T, C); tokens: (B, T) i32.
  void backward(const LayerContext& context, const Tensor& dout, const Tensor& tokens) const;

 private:
  ParameterSet::Id wte_;
  ParameterSet::Id wpe_;
  bool has_positions_;
  ActivationSet::Id scratch_ = ActivationSet::kNone;
};

}  // namespace llmc
