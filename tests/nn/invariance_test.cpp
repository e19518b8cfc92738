// What a result must not depend on.

#include <gtest/gtest.h>

#include <exception>
#include <thread>
#include <vector>

#include "nn/tiny_model.h"

namespace llmc {
namespace {

const ModelConfig kConfig = ModelConfig::gpt2(3, 3, 39, 40, 97);
constexpr std::int64_t kB = 3, kT = 33;

struct Result {
  double loss_sum;
  std::vector<float> losses, gradients;
  bool operator==(const Result&) const = default;
};

Result run(Transformer& model, const testing::TokenBatch& batch, std::int64_t B = 0,
           std::int64_t T = 0) {
  model.begin_step(
      {.lr = 0, .seed = 0, .step = 0, .nominal_tokens = static_cast<double>(batch.tokens.size())});
  model.forward(batch.tokens, batch.targets, B, T);
  model.backward();
  return {model.read_step_block().loss_sum, testing::read_values(model.stream(), model.losses()),
          testing::all_gradients(model)};
}

TransformerOptions options(Recompute recompute = Recompute::kNone, DType dtype = DType::kF32) {
  TransformerOptions o;
  o.micro_batch = kB;
  o.seq_len = kT;
  o.dtype = dtype;
  o.recompute = recompute;
  o.head_chunk_bytes = 20 * 128 * 4;
  return o;
}

class InDType : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Invariance, InDType, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(InDType, RecomputeLevelsGiveTheSameBits) {
  const auto batch = testing::random_batch(97, kB * kT, 5, 8);
  const auto other = testing::random_batch(97, kB * kT, 6, 8);
  Transformer base = testing::make_model(kConfig, options(Recompute::kNone, GetParam()));
  const Result expected = run(base, batch);
  std::size_t bytes = base.arena().bytes(MemoryKind::kActivations) + 1;
  for (const Recompute level :
       {Recompute::kNone, Recompute::kGelu, Recompute::kGeluNorm, Recompute::kBlock}) {
    Transformer model = testing::make_model(kConfig, options(level, GetParam()));
    run(model, other);  // leaves other values in the shared memory
    EXPECT_EQ(run(model, batch), expected) << name_of(level);
    EXPECT_LT(model.arena().bytes(MemoryKind::kActivations), bytes) << name_of(level);
    bytes = model.arena().bytes(MemoryKind::kActivations);
  }
}

TEST_P(InDType, ThreadCountsGiveTheSameBits) {
  const auto batch = testing::random_batch(97, kB * kT, 5, 8);
  Transformer base = testing::make_model(kConfig, options(Recompute::kNone, GetParam()), 1);
  const Result expected = run(base, batch);
  for (const int threads : {2, 3, 7}) {
    Transformer model =
        testing::make_model(kConfig, options(Recompute::kNone, GetParam()), threads);
    EXPECT_EQ(run(model, batch), expected) << threads;
  }
}

TEST_P(InDType, RepeatsGiveTheSameBits) {
  const auto batch = testing::random_batch(97, kB * kT, 5, 8);
  Transformer model = testing::make_model(kConfig, options(Recompute::kNone, GetParam()));
  const Result expected = run(model, batch);
  EXPECT_EQ(run(model, batch), expected);
}

TEST(Invariance, EvaluationEqualsTraining) {
  const auto batch = testing::random_batch(97, kB * kT, 5, 8);
  Transformer model = testing::make_model(kConfig, options());
  const Result trained = run(model, batch);
  TransformerOptions o = options();
  o.training = false;
  Transformer lean = testing::make_model(kConfig, o);
  EXPECT_EQ(lean.arena().bytes(MemoryKind::kGradients), 0u);
  std::vector<float> losses(kB * kT);
  for (Transformer* m : {&model, &lean}) {
    EXPECT_DOUBLE_EQ(m->evaluate(batch.tokens, batch.targets, 0, 0, losses).loss_sum,
                     trained.loss_sum);
    EXPECT_EQ(losses, trained.losses);
  }
}

// Micro-steps of one row add up to the micro-batch of all rows.
TEST(Invariance, AccumulationOfMicroSteps) {
  const auto batch = testing::random_batch(97, kB * kT, 5, 8);
  Transformer whole = testing::make_model(kConfig, options());
  const Result expected = run(whole, batch);
  Transformer model = testing::make_model(kConfig, options());
  run(model, testing::random_batch(97, kB * kT, 6));  // to be overwritten
  model.begin_step({.lr = 0, .seed = 0, .step = 1, .nominal_tokens = kB * kT}, kB);
  for (std::int64_t b = 0; b < kB; ++b) {
    const std::size_t begin = static_cast<std::size_t>(b * kT);
    model.forward(std::span(batch.tokens).subspan(begin, kT),
                  std::span(batch.targets).subspan(begin, kT), 1);
    model.backward();
  }
  EXPECT_NEAR(model.read_step_block().loss_sum, expected.loss_sum, 1e-6 * expected.loss_sum);
  EXPECT_LT(testing::relative_l2(testing::all_gradients(model), expected.gradients), 2e-6);
}

// A model planned for more gives what a model planned for just this much gives.
TEST(Invariance, SmallerCallsThanPlanned) {
  for (const auto& [B, T] :
       {std::pair<std::int64_t, std::int64_t>{1, 7}, {2, 33}, {3, 1}, {1, 1}}) {
    const auto batch = testing::random_batch(97, B * T, 5);
    TransformerOptions o = options();
    Transformer large = testing::make_model(kConfig, o);
    run(large, testing::random_batch(97, kB * kT, 6));
    const Result got = run(large, batch, B, T);
    o.micro_batch = B;
    o.seq_len = T;
    Transformer exact = testing::make_model(kConfig, o);
    const Result expected = run(exact, batch);
    EXPECT_LT(testing::relative_l2(got.losses, expected.losses), 1e-6) << B << ' ' << T;
    EXPECT_LT(testing::relative_l2(got.gradients, expected.gradients), 2e-6) << B << ' ' << T;
  }
}

// Positions from T up take no part: their gradient is zero, also after a longer call.
TEST(Invariance, UnusedPositionsHaveNoGradient) {
  Transformer model = testing::make_model(kConfig, options());
  run(model, testing::random_batch(97, kB * kT, 6));
  run(model, testing::random_batch(97, kB * 5, 7), kB, 5);
  const auto wpe = testing::read_values(model.stream(), model.parameters().gradient("wpe"));
  for (std::size_t i = 0; i < wpe.size(); ++i) {
    if (i < 5 * 39) continue;
    ASSERT_EQ(wpe[i], 0.0f) << i;
  }
}

// bf16 keeps 8 bits: each of the few roundings that a value passes costs up to 2⁻⁹ of it.
TEST(Invariance, Bf16IsCloseToF32) {
  const auto batch = testing::random_batch(97, kB * kT, 5, 8);
  Transformer low = testing::make_model(kConfig, options(Recompute::kNone, DType::kBF16));
  Transformer full = testing::make_model(kConfig, options());
  for (const Parameter& p : full.parameters().table()) {  // the same, rounded, weights
    testing::write_values(full.stream(), full.parameters().value(p.name),
                          testing::read_values(low.stream(), low.parameters().value(p.name)));
  }
  const Result expected = run(full, batch);
  const Result got = run(low, batch);
  EXPECT_LT(testing::relative_l2(got.losses, expected.losses), 0.01);
  EXPECT_LT(testing::relative_l2(got.gradients, expected.gradients), 0.03);
}

TEST(Invariance, TwoModelsInTwoThreads) {
  const auto batch_a = testing::random_batch(97, kB * kT, 5),
             batch_b = testing::random_batch(97, kB * kT, 6);
  Transformer a = testing::make_model(kConfig, options(), 2, 1);
  Transformer b = testing::make_model(kConfig, options(), 2, 2);
  const Result expected_a = run(a, batch_a), expected_b = run(b, batch_b);
  bool same_a = true, same_b = true;
  std::exception_ptr error_a, error_b;
  const auto repeat = [](Transformer& model, const testing::TokenBatch& batch,
                         const Result& expected, bool& same, std::exception_ptr& error) {
    try {
      for (int i = 0; i < 5; ++i) same = same && run(model, batch) == expected;
    } catch (...) {
      error = std::current_exception();
    }
  };
  std::thread other([&] { repeat(a, batch_a, expected_a, same_a, error_a); });
  repeat(b, batch_b, expected_b, same_b, error_b);
  other.join();
  EXPECT_FALSE(error_a || error_b);
  EXPECT_TRUE(same_a);
  EXPECT_TRUE(same_b);
}

}  // namespace
}  // namespace llmc
