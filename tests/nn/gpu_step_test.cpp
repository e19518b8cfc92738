// A step in steady state only queues work: it neither waits for the device nor asks it for memory.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <span>

#include "core/cuda/counters.h"
#include "llmc/optim/adamw.h"
#include "nn/tiny_model.h"

namespace llmc {
namespace {

const ModelConfig kConfig = ModelConfig::gpt2(2, 3, 48, 24, 97);

/// A model that trains on one batch over and over.
struct Rig {
  explicit Rig(DType dtype)
      : model(testing::make_model(kConfig, {.micro_batch = 3, .seq_len = 17, .dtype = dtype})),
        optimizer(model.parameters(), {}, {.grad_clip = 1.0f}),
        batch(testing::random_batch(97, 3 * 17, 1)) {
    optimizer.allocate(model.stream().device());
    optimizer.start(model.stream());
  }

  void step(std::int64_t index, int micro_steps) {
    model.begin_step({.lr = 1e-3f, .seed = 1, .step = index, .nominal_tokens = 51.0 * micro_steps},
                     micro_steps);
    for (int i = 0; i < micro_steps; ++i) {
      model.forward(batch.tokens, batch.targets);
      model.backward();
    }
    optimizer.step(model.stream(), model.step_block());
  }

  Transformer model;
  AdamW optimizer;
  testing::TokenBatch batch;
};

class GpuStep : public ::testing::TestWithParam<DType> {
 protected:
  Rig rig_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(DTypes, GpuStep, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuStep, NeitherWaitsNorAllocates) {
  Readback readback(rig_.model.stream().device(), sizeof(StepBlock));
  for (int i = 0; i < 3; ++i) rig_.step(i, 2);
  readback.start(rig_.model.stream(), rig_.model.step_block());
  readback.wait();
  const std::int64_t waits = cuda::counters().waits;
  const std::int64_t allocations = cuda::counters().allocations;
  for (int i = 3; i < 8; ++i) {
    rig_.step(i, 2);
    readback.start(rig_.model.stream(), rig_.model.step_block());
  }
  EXPECT_EQ(cuda::counters().waits, waits);
  EXPECT_EQ(cuda::counters().allocations, allocations);
  readback.wait();  // the counter counts
  EXPECT_EQ(cuda::counters().waits, waits + 1);
}

TEST_P(GpuStep, FiftyStepsRepeatToTheBit) {
  const auto run = [](Rig& r) {
    std::vector<float> losses;
    for (int i = 0; i < 50; ++i) {
      r.step(i, 1);
      losses.push_back(r.model.read_step_block().loss);
    }
    return std::pair(losses, testing::all_gradients(r.model));
  };
  Rig again(GetParam());
  const auto first = run(rig_);
  EXPECT_EQ(run(again), first);
  EXPECT_LT(first.first.back(), first.first.front());
}

// From its third time on a pass is a replayed recording, but not where hooks must be called.
TEST_P(GpuStep, RecordedPassesGiveTheSameBits) {
  Rig plain(GetParam());
  plain.model.on_bucket_ready([](std::size_t) {});
  for (Rig* rig : {&rig_, &plain}) {
    for (int i = 0; i < 5; ++i) rig->step(i, 3);
    // Other sizes in between.
    rig->model.begin_step({.lr = 1e-3f, .seed = 1, .step = 5, .nominal_tokens = 10}, 1);
    rig->model.forward(std::span(rig->batch.tokens).first(10),
                       std::span(rig->batch.targets).first(10), 2, 5);
    rig->model.backward();
    rig->step(6, 3);
  }
  EXPECT_EQ(rig_.model.read_step_block().loss, plain.model.read_step_block().loss);
  EXPECT_EQ(testing::all_gradients(rig_.model), testing::all_gradients(plain.model));
}

// The update is judged on the device: nothing is read back before it.
TEST_P(GpuStep, ANanStepChangesNothingWithoutAHostWait) {
  rig_.step(0, 1);
  const Tensor wte = rig_.model.parameters().value("wte");
  std::vector<float> weights = testing::read_values(rig_.model.stream(), wte);
  std::vector<float> broken = weights;
  broken[0] = std::numeric_limits<float>::quiet_NaN();
  testing::write_values(rig_.model.stream(), wte, broken);
  const Tensor fc = rig_.model.parameters().value("blocks.0.mlp.fc.weight");
  const std::vector<float> before = testing::read_values(rig_.model.stream(), fc);
  rig_.batch.tokens[0] = 0;  // the row with the NaN
  rig_.model.stream().synchronize();
  const std::int64_t waits = cuda::counters().waits;
  rig_.step(1, 1);
  EXPECT_EQ(cuda::counters().waits, waits);
  const StepBlock block = rig_.model.read_step_block();
  EXPECT_NE(block.skip, kNoSkip);
  EXPECT_EQ(block.updates, 1);
  EXPECT_EQ(testing::read_values(rig_.model.stream(), fc), before);
  testing::write_values(rig_.model.stream(), wte, weights);
  rig_.step(2, 1);
  EXPECT_EQ(rig_.model.read_step_block().updates, 2);
}

}  // namespace
}  // namespace llmc
