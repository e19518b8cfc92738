// A step in steady state only queues work: it neither waits for the device nor asks it for memory.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/cuda/counters.h"
#include "llmc/optim/adamw.h"
#include "nn/tiny_model.h"

namespace llmc {
namespace {

const ModelConfig kConfig = ModelConfig::gpt2(2, 3, 48, 24, 97);

class GpuStep : public ::testing::TestWithParam<DType> {
 protected:
  GpuStep()
      : model_(
            testing::make_model(kConfig, {.micro_batch = 3, .seq_len = 17, .dtype = GetParam()})),
        optimizer_(model_.parameters(), {}, {.grad_clip = 1.0f}),
        batch_(testing::random_batch(97, 3 * 17, 1)) {
    optimizer_.allocate(model_.stream().device());
    optimizer_.start(model_.stream());
  }

  void step(std::int64_t index, int micro_steps, float lr = 1e-3f) {
    model_.begin_step({.lr = lr, .seed = 1, .step = index, .nominal_tokens = 51.0 * micro_steps},
                      micro_steps);
    for (int i = 0; i < micro_steps; ++i) {
      model_.forward(batch_.tokens, batch_.targets);
      model_.backward();
    }
    optimizer_.step(model_.stream(), model_.step_block());
  }

  Transformer model_;
  AdamW optimizer_;
  testing::TokenBatch batch_;
};

INSTANTIATE_TEST_SUITE_P(DTypes, GpuStep, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuStep, NeitherWaitsNorAllocates) {
  Readback readback(model_.stream().device(), sizeof(StepBlock));
  for (int i = 0; i < 3; ++i) step(i, 2);
  readback.start(model_.stream(), model_.step_block());
  readback.wait();
  const std::int64_t waits = cuda::counters().waits;
  const std::int64_t allocations = cuda::counters().allocations;
  for (int i = 3; i < 8; ++i) {
    step(i, 2);
    readback.start(model_.stream(), model_.step_block());
  }
  EXPECT_EQ(cuda::counters().waits, waits);
  EXPECT_EQ(cuda::counters().allocations, allocations);
  readback.wait();  // the counter counts
  EXPECT_EQ(cuda::counters().waits, waits + 1);
}

TEST_P(GpuStep, FiftyStepsRepeatToTheBit) {
  const auto run = [this] {
    testing::randomise(model_.stream(), model_.parameters(), 1);
    optimizer_.start(model_.stream());
    std::vector<float> losses;
    for (int i = 0; i < 50; ++i) {
      step(i, 1);
      losses.push_back(model_.read_step_block().loss);
    }
    return std::pair(losses, testing::all_gradients(model_));
  };
  const auto first = run();
  EXPECT_EQ(run(), first);
  EXPECT_LT(first.first.back(), first.first.front());
}

// The update is judged on the device: nothing is read back before it.
TEST_P(GpuStep, ANanStepChangesNothingWithoutAHostWait) {
  step(0, 1);
  const Tensor wte = model_.parameters().value("wte");
  std::vector<float> weights = testing::read_values(model_.stream(), wte);
  std::vector<float> broken = weights;
  broken[0] = std::numeric_limits<float>::quiet_NaN();
  testing::write_values(model_.stream(), wte, broken);
  const Tensor fc = model_.parameters().value("blocks.0.mlp.fc.weight");
  const std::vector<float> before = testing::read_values(model_.stream(), fc);
  batch_.tokens[0] = 0;  // the row with the NaN
  model_.stream().synchronize();
  const std::int64_t waits = cuda::counters().waits;
  step(1, 1);
  EXPECT_EQ(cuda::counters().waits, waits);
  const StepBlock block = model_.read_step_block();
  EXPECT_NE(block.skip, kNoSkip);
  EXPECT_EQ(block.updates, 1);
  EXPECT_EQ(testing::read_values(model_.stream(), fc), before);
  testing::write_values(model_.stream(), wte, weights);
  step(2, 1);
  EXPECT_EQ(model_.read_step_block().updates, 2);
}

}  // namespace
}  // namespace llmc
