#include "llmc/nn/embedding.h"

#include "llmc/ops/embedding.h"

namespace llmc {

Embedding::Embedding(LayerPlan& plan, const std::string& prefix, std::int64_t vocab_size,
                     std::int64_t padded_vocab_size, std::int64_t positions, std::int64_t channels,
                     float stddev)
    : wte_(plan.parameters.declare(prefix + "wte", {padded_vocab_size, channels},
                                   Initialiser::normal(stddev, vocab_size),
                                   OptimizerGroup::kDecay)),
      wpe_(wte_),
      has_positions_(positions > 0) {
  if (has_positions_) {
    wpe_ = plan.parameters.declare(prefix + "wpe", {positions, channels},
                                   Initialiser::normal(stddev), OptimizerGroup::kDecay);
  }
  if (plan.training) {
    scratch_ = plan.activations.share(
        "scratch", DType::kU8,
        {embedding_backward_scratch(plan.stream, plan.batch, plan.tokens, channels)});
  }
}

void Embedding::forward(const LayerContext& context, const Tensor& out, const Tensor& tokens,
                        std::int64_t first_position) const {
  embedding_forward(context.stream, out, tokens, context.parameters.value(wte_),
                    has_positions_ ? context.parameters.value(wpe_) : Tensor(), first_position);
}

void Embedding::forward_at(const LayerContext& context, const Tensor& out, const Tensor& tokens,
                           const Tensor& positions) const {
  embedding_forward_at(context.stream, out, tokens, context.parameters.value(wte_),
                       has_positions_ ? context.parameters.value(wpe_) : Tensor(), positions);
}

void Embedding::backward(const LayerContext& context, const Tensor& dout,
                         const Tensor& tokens) const {
  embedding_backward(context.stream, context.parameters.gradient(wte_),
                     has_positions_ ? context.parameters.gradient(wpe_) : Tensor(), dout, tokens,
                     context.activations.get(scratch_), context.accumulate);
}

}  // namespace llmc
