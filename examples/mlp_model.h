#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/core/arena.h"
#include "llmc/data/batch_source.h"
#include "llmc/nn/embedding.h"
#include "llmc/nn/head.h"
#include "llmc/nn/linear.h"
#include "llmc/ops/step.h"

constexpr std::int64_t kRows = 256, kContext = 12, kChannels = 24, kWidth = 160;
constexpr std::int64_t kVocab = 257, kPaddedVocab = 384;

/// The elements of an f32 tensor.
inline std::vector<float> to_host(llmc::Stream& stream, const llmc::Tensor& tensor) {
  std::vector<float> elements(static_cast<std::size_t>(tensor.numel()));
  copy_to_host(stream, elements.data(), tensor);
  return elements;
}

/// The new layer: out = gain ⊙ tanh(in), with one gain per channel. Its constructor declares what
/// it learns and what it keeps for the backward pass; it stores their numbers only. It computes on
/// copies, because tensors may be on a GPU: a fast layer would have a kernel for its backend.
class ScaledTanh {
 public:
  ScaledTanh(llmc::LayerPlan& plan, const std::string& name, std::int64_t channels)
      : gain_(plan.parameters.declare(name + ".gain", {channels}, llmc::Initialiser::ones(),
                                      llmc::OptimizerGroup::kNoDecay)),
        tanh_(plan.activations.keep(name + ".tanh", plan.dtype(), {plan.batch, channels})) {}

  /// out, in: (N, channels); out may be in.
  void forward(const llmc::LayerContext& context, const llmc::Tensor& out,
               const llmc::Tensor& in) const {
    llmc::Stream& stream = context.stream;
    const std::vector<float> gain = to_host(stream, context.parameters.value(gain_));
    std::vector<float> values = to_host(stream, in);
    for (float& x : values) x = std::tanh(x);
    copy_from_host(stream, context.activations.get(tanh_), values.data());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= gain[i % gain.size()];
    copy_from_host(stream, out, values.data());
  }

  /// din, dout: (N, channels); din may be dout.
  void backward(const llmc::LayerContext& context, const llmc::Tensor& din,
                const llmc::Tensor& dout) const {
    llmc::Stream& stream = context.stream;
    const llmc::Tensor gain_gradient = context.parameters.gradient(gain_);
    if (!context.accumulate) zero(stream, gain_gradient);
    const std::vector<float> gain = to_host(stream, context.parameters.value(gain_));
    const std::vector<float> tanh = to_host(stream, context.activations.get(tanh_));
    std::vector<float> dgain = to_host(stream, gain_gradient);
    std::vector<float> d = to_host(stream, dout);
    for (std::size_t i = 0; i < d.size(); ++i) {
      const std::size_t channel = i % gain.size();
      dgain[channel] += d[i] * tanh[i];
      d[i] *= gain[channel] * (1.0f - tanh[i] * tanh[i]);
    }
    copy_from_host(stream, gain_gradient, dgain.data());
    copy_from_host(stream, din, d.data());
  }

 private:
  llmc::ParameterSet::Id gain_;
  llmc::ActivationSet::Id tanh_;
};

/// Embedding → hidden layer → tanh → projection → head, tied to the embedding.
class MlpModel {
 public:
  explicit MlpModel(const llmc::Device& device) : stream_(device), parameters_(llmc::DType::kF32) {
    // 1. Layers declare what they need.
    llmc::LayerPlan plan{parameters_, activations_, stream_, /*batch=*/kRows, /*tokens=*/kContext};
    parameters_.begin_bucket("mlp");
    embedding_.emplace(plan, "", kVocab, kPaddedVocab, /*positions=*/0, kChannels, 0.5f);
    hidden_.emplace(plan, "hidden", kContext * kChannels, kWidth, /*bias=*/true, 0.05f);
    tanh_.emplace(plan, "tanh", kWidth);
    proj_.emplace(plan, "proj", kWidth, kChannels, /*bias=*/true, 0.05f);
    head_.emplace(plan, embedding_->weight(), kVocab, /*chunk_bytes=*/1 << 20);
    tokens_ = activations_.keep("tokens", llmc::DType::kI32, {kRows, kContext});
    targets_ = activations_.keep("targets", llmc::DType::kI32, {kRows});
    losses_ = activations_.keep("losses", llmc::DType::kF32, {kRows});
    embedded_ = activations_.keep("embedded", plan.dtype(), {kRows, kContext, kChannels});
    wide_ = activations_.keep("wide", plan.dtype(), {kRows, kWidth});
    final_ = activations_.keep("final", plan.dtype(), {kRows, kChannels});
    dwide_ = activations_.share("dwide", plan.dtype(), {kRows, kWidth});
    step_ = activations_.keep("step", llmc::DType::kU8, {sizeof(llmc::StepBlock)});
    // 2. The plan is allocated, 3. bound and initialised.
    parameters_.plan(arena_);
    activations_.plan(arena_);
    arena_.allocate(device);
    parameters_.bind(arena_);
    activations_.bind(arena_);
    initialise(stream_, parameters_, /*seed=*/42);
    const llmc::StepBlock empty{};
    copy_from_host(stream_, activations_.get(step_), &empty);
  }

  /// 4. One forward and backward pass; returns the mean loss. contexts: (N, kContext); targets:
  /// (N).
  double run(const llmc::Batch& batch, const llmc::StepInputs& inputs) {
    const llmc::LayerContext context{stream_, parameters_, activations_};
    const auto get = [&](llmc::ActivationSet::Id id) { return activations_.get(id); };
    begin_step(stream_, step_block(), inputs);
    copy_from_host(stream_, get(tokens_), batch.inputs.data());
    copy_from_host(stream_, get(targets_), batch.targets.data());

    embedding_->forward(context, get(embedded_), get(tokens_));
    // (N, kContext, C) lies in memory like (N, kContext · C), which is all that concatenation is.
    const llmc::Tensor side_by_side = get(embedded_).view({kRows, kContext * kChannels});
    hidden_->forward(context, get(wide_), side_by_side);
    tanh_->forward(context, get(wide_), get(wide_));
    proj_->forward(context, get(final_), get(wide_));
    head_->forward_backward(context, get(losses_), get(final_), get(final_), get(targets_),
                            static_cast<float>(1.0 / inputs.nominal_tokens), step_block());
    const llmc::Tensor dfinal = get(final_);  // the head has left the gradient there
    proj_->backward_weight(context, dfinal, get(wide_));
    proj_->backward_input(context, get(dwide_), dfinal);
    tanh_->backward(context, get(dwide_), get(dwide_));
    hidden_->backward_weight(context, get(dwide_), side_by_side);
    hidden_->backward_input(context, side_by_side, get(dwide_));
    embedding_->backward(context, get(embedded_), get(tokens_));  // adds to what the head wrote

    llmc::StepBlock done;
    copy_to_host(stream_, &done, get(step_));
    return done.loss_sum / static_cast<double>(done.counted_tokens);
  }

  llmc::Stream& stream() { return stream_; }
  const llmc::ParameterSet& parameters() const { return parameters_; }
  llmc::StepBlock* step_block() {
    return static_cast<llmc::StepBlock*>(activations_.get(step_).raw());
  }

 private:
  llmc::Stream stream_;
  llmc::ParameterSet parameters_;
  llmc::ActivationSet activations_;
  llmc::Arena arena_;
  std::optional<llmc::Embedding> embedding_;
  std::optional<llmc::Linear> hidden_, proj_;
  std::optional<ScaledTanh> tanh_;
  std::optional<llmc::LmHead> head_;
  llmc::ActivationSet::Id tokens_, targets_, losses_, embedded_, wide_, final_, dwide_, step_;
};
