// Layers put together without a Transformer.

#include <gtest/gtest.h>

#include <vector>

#include "llmc/core/error.h"
#include "llmc/nn/attention.h"
#include "llmc/nn/embedding.h"
#include "llmc/nn/head.h"
#include "llmc/nn/linear.h"
#include "llmc/nn/mlp.h"
#include "llmc/nn/norm.h"
#include "nn/tiny_model.h"

namespace llmc {
namespace {

// hidden = embedding + attention(norm(embedding)) with fewer key than query heads and a head size
// of its own, then mlp(hidden), without residual; untied head.
class Assembled {
 public:
  static constexpr std::int64_t kB = 2, kT = 7, kC = 12, kV = 30;

  Assembled()
      : plan_{parameters, activations, stream, kB, kT},
        embedding_((parameters.begin_bucket("embedding"), plan_), "in.", kV, 32, 0, kC, 0.5f),
        norm_((parameters.begin_bucket("layers"), plan_), "norm", kC, 1e-5f),
        attention_(plan_, "attn", {kC, 4, 2, 5}, true, 0.3f, 0.3f),
        mlp_(plan_, "mlp", kC, 17, false, 0.3f, 0.3f),
        out_(plan_, "out", kC, kC, true, 0.4f),
        head_weight_(parameters.declare("head.weight", {32, kC}, Initialiser::normal(0.5f, kV),
                                        OptimizerGroup::kDecay)),
        head_(plan_, head_weight_, kV, 3 * 32 * 4) {
    for (ActivationSet::Id* id :
         {&x_, &normed_, &attended_, &mlp_out_, &hidden_, &grad_, &grad2_}) {
      *id = activations.keep("assembled", DType::kF32, {kB, kT, kC});
    }
    tokens_ = activations.keep("tokens", DType::kI32, {kB, kT});
    targets_ = activations.keep("targets", DType::kI32, {kB * kT});
    losses_ = activations.keep("losses", DType::kF32, {kB * kT});
    step_ = activations.keep("step", DType::kU8, {sizeof(StepBlock)});
    parameters.plan(arena);
    activations.plan(arena);
    arena.allocate(device);
    parameters.bind(arena);
    activations.bind(arena);
    testing::randomise(stream, parameters, 4);
  }

  /// Sum of losses; with gradients if asked for.
  double run(const testing::TokenBatch& batch, bool backward) {
    const LayerContext ctx{stream, parameters, activations};
    const auto get = [&](ActivationSet::Id id) { return activations.get(id); };
    const Shape rows{kB * kT, kC};
    copy_from_host(stream, get(tokens_), batch.tokens.data());
    copy_from_host(stream, get(targets_), batch.targets.data());
    zero(stream, get(step_));
    auto* block = static_cast<StepBlock*>(get(step_).raw());
    embedding_.forward(ctx, get(x_), get(tokens_));
    norm_.forward(ctx, get(normed_), get(x_));
    attention_.forward(ctx, get(attended_), get(normed_));
    mlp_.forward(ctx, get(mlp_out_), get(attended_));
    out_.forward(ctx, get(hidden_), get(mlp_out_));
    const Tensor hidden = get(hidden_).view(rows);
    if (!backward) {
      head_.forward(ctx, get(losses_), hidden, get(targets_), block);
    } else {
      head_.forward_backward(ctx, get(losses_), get(grad_).view(rows), hidden, get(targets_), 1.0f,
                             block);
      out_.backward_weight(ctx, get(grad_), get(mlp_out_));
      out_.backward_input(ctx, get(grad2_), get(grad_));
      mlp_.backward(ctx, get(grad2_), get(grad2_), get(attended_));
      attention_.backward(ctx, get(grad2_), get(grad2_), get(normed_));
      norm_.backward(ctx, get(grad_), get(grad2_), get(x_), false);
      zero(stream, parameters.gradient("in.wte"));
      embedding_.backward(ctx, get(grad_), get(tokens_));
      attention_.backward_qkv(ctx, get(normed_));
    }
    StepBlock sums{};
    copy_to_host(stream, &sums, get(step_));
    EXPECT_EQ(sums.counted_tokens, kB * kT);
    return sums.loss_sum;
  }

  Device device = Device::open({.threads = 2});
  Stream stream{device};
  ParameterSet parameters{DType::kF32};
  ActivationSet activations;
  Arena arena;

 private:
  LayerPlan plan_;
  Embedding embedding_;
  LayerNorm norm_;
  CausalSelfAttention attention_;
  Mlp mlp_;
  Linear out_;
  ParameterSet::Id head_weight_;
  LmHead head_;
  ActivationSet::Id x_, normed_, attended_, mlp_out_, hidden_, grad_, grad2_;
  ActivationSet::Id tokens_, targets_, losses_, step_;
};

TEST(Layers, AssembledModelMatchesCentralDifferences) {
  Assembled model;
  const auto batch = testing::random_batch(Assembled::kV, Assembled::kB * Assembled::kT, 8);
  const double loss = model.run(batch, true);
  EXPECT_NEAR(model.run(batch, false), loss, 1e-9 * loss);
  EXPECT_THROW(model.parameters.find("mlp.fc.bias"), Error);  // declared without biases
  for (const Parameter& p : model.parameters.table()) {
    const Tensor value = model.parameters.value(p.name);
    const auto gradient = testing::read_values(model.stream, model.parameters.gradient(p.name));
    const auto original = testing::read_values(model.stream, value);
    constexpr float kStep = 0.02f;
    for (const std::size_t i : {std::size_t{0}, gradient.size() / 3, gradient.size() / 2}) {
      const auto loss_at = [&](float step) {
        auto moved = original;
        moved[i] += step;
        testing::write_values(model.stream, value, moved);
        return model.run(batch, false);
      };
      const double near = loss_at(kStep) - loss_at(-kStep);
      const double far = loss_at(2 * kStep) - loss_at(-2 * kStep);
      const double difference = (8 * near - far) / (12 * static_cast<double>(kStep));
      EXPECT_NEAR(gradient[i], difference, 5e-4 + 5e-3 * std::abs(difference))
          << p.name << ' ' << i;
    }
    testing::write_values(model.stream, value, original);
  }
}

TEST(Layers, RefuseWhatTheyCannotBe) {
  const Device device = Device::open({.threads = 1});
  Stream stream(device);
  ParameterSet parameters(DType::kF32);
  ActivationSet activations;
  LayerPlan plan{parameters, activations, stream, 1, 4};
  parameters.begin_bucket("b");
  EXPECT_THROW(CausalSelfAttention(plan, "a", {12, 4, 3, 3}, true, 1, 1), Error);
  EXPECT_THROW(CausalSelfAttention(plan, "b", {12, 4, 0, 3}, true, 1, 1), Error);
  EXPECT_THROW(CausalSelfAttention(plan, "c", {12, 1, 1, 1 << 20}, true, 1, 1), Error);
  const auto weight = parameters.declare("w", {8, 3}, Initialiser::ones(), OptimizerGroup::kDecay);
  EXPECT_THROW(LmHead(plan, weight, 9, 100), Error);
  EXPECT_THROW(LmHead(plan, weight, 8, 0), Error);
}

TEST(Layers, HeadChunksAreEqualAndWithinBounds) {
  const Device device = Device::open({.threads = 1});
  Stream stream(device);
  ParameterSet parameters(DType::kF32);
  ActivationSet activations;
  LayerPlan plan{parameters, activations, stream, 2, 50};
  parameters.begin_bucket("b");
  const auto weight =
      parameters.declare("w", {128, 3}, Initialiser::ones(), OptimizerGroup::kDecay);
  EXPECT_EQ(LmHead(plan, weight, 100, 1).chunk_rows(), 1);
  EXPECT_EQ(LmHead(plan, weight, 100, 512 * 70).chunk_rows(), 50);
  EXPECT_EQ(LmHead(plan, weight, 100, 1 << 30).chunk_rows(), 100);
}

TEST(ActivationSet, KeepsAndShares) {
  const Device device = Device::open({.threads = 1});
  ActivationSet set;
  const auto a = set.share("s", DType::kF32, {10});
  const auto b = set.share("s", DType::kF32, {4, 5});
  const auto c = set.keep_or_share(true, "k", "one", DType::kF32, {3});
  const auto d = set.keep_or_share(true, "k", "two", DType::kF32, {3});
  EXPECT_EQ(a, b);
  EXPECT_NE(c, d);
  EXPECT_THROW(set.share("s", DType::kBF16, {4}), Error);
  Arena arena;
  set.plan(arena);
  EXPECT_EQ(arena.bytes(MemoryKind::kScratch), 128u);
  EXPECT_EQ(arena.bytes(MemoryKind::kActivations), 128u);
  EXPECT_THROW(set.keep("late", DType::kF32, {1}), Error);
  arena.allocate(device);
  set.bind(arena);
  EXPECT_EQ(set.get(a, {2, 10}).shape(), (Shape{2, 10}));
  EXPECT_THROW(set.get(a, {21}), Error);
  EXPECT_TRUE(set.get(ActivationSet::kNone, {5}).empty());
}

TEST(Recompute, Names) {
  for (const char* name : {"none", "gelu", "gelu+norm", "block"}) {
    EXPECT_EQ(name_of(recompute_from_name(name)), name);
  }
  EXPECT_THROW(recompute_from_name("all"), Error);
}

}  // namespace
}  // namespace llmc
