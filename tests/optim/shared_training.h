#pragma once

// A model that N ranks train on the same global batches as one process.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "llmc/optim/adamw.h"
#include "nn/tiny_model.h"

namespace llmc::testing {

inline constexpr std::int64_t kSharedVocab = 97;
inline constexpr std::int64_t kSharedRows = 60;  // of the global batch: 1 to 5 ranks divide it
inline constexpr std::int64_t kSharedT = 9;
// Nothing here divides anything: 3 heads of 13 channels, slices that cut through matrices.
inline const ModelConfig kSharedConfig = ModelConfig::gpt2(2, 3, 39, 24, kSharedVocab);

/// How a run is made, and what came of it.
struct SharedSetting {
  int zero_stage = 1;
  DType dtype = DType::kF32;
  DType wire = DType::kF32;
  int micro_steps = 1;
  bool attached = true;
  Device device = Device::open({.threads = 1});
};

struct SharedOutcome {
  std::vector<float> losses, norms;
  std::map<std::string, std::vector<char>> weights;
  StepBlock block;
};

/// Two thirds of the first rows' targets do not count, so ranks count different numbers.
inline TokenBatch global_batch(std::int64_t step) {
  auto batch =
      random_batch(kSharedVocab, kSharedRows * kSharedT, static_cast<std::uint32_t>(step), 7);
  for (std::size_t i = 0; i < batch.targets.size() / 3; ++i) {
    if (i % 3 != 0) batch.targets[i] = -1;
  }
  return batch;
}

/// One rank's model and optimizer.
struct SharedRank {
  SharedRank(Communicator* comm, const SharedSetting& s)
      : ranks(comm ? comm->size() : 1),
        rank(comm ? comm->rank() : 0),
        micro_steps(s.micro_steps),
        model(make_model(s.device, kSharedConfig,
                         {.micro_batch = kSharedRows / ranks / micro_steps,
                          .seq_len = kSharedT,
                          .dtype = s.dtype,
                          .ranks = ranks})),
        optimizer(model.parameters(), {.weight_decay = 0.1f}, {.grad_clip = 1.0f}, true,
                  {comm, s.zero_stage, s.wire}) {
    optimizer.allocate(model.stream().device());
    optimizer.start(model.stream());
    if (s.attached) optimizer.attach(model);
  }

  void passes(std::int64_t step, std::int32_t stop = 0) {
    const TokenBatch batch = global_batch(step);
    model.begin_step({.lr = 0.01f,
                      .seed = 3,
                      .step = step,
                      .nominal_tokens = static_cast<double>(kSharedRows * kSharedT),
                      .stop = stop},
                     micro_steps);
    const auto own = static_cast<std::size_t>(kSharedRows * kSharedT / ranks);
    const std::size_t micro = own / static_cast<std::size_t>(micro_steps);
    for (int i = 0; i < micro_steps; ++i) {
      const std::size_t begin =
          static_cast<std::size_t>(rank) * own + static_cast<std::size_t>(i) * micro;
      model.forward(std::span(batch.tokens).subspan(begin, micro),
                    std::span(batch.targets).subspan(begin, micro));
      model.backward();
    }
  }

  StepBlock step(std::int64_t index, std::int32_t stop = 0) {
    passes(index, stop);
    optimizer.step(model.stream(), model.step_block());
    return model.read_step_block();
  }

  std::map<std::string, std::vector<char>> weights() {
    optimizer.need_parameters(model.stream());
    std::map<std::string, std::vector<char>> all;
    for (const Parameter& p : model.parameters().table()) {
      all[p.name] = read_bytes(model.stream(), model.parameters().value(p.name));
    }
    return all;
  }

  int ranks, rank, micro_steps;
  Transformer model;
  AdamW optimizer;
};

inline SharedOutcome train(Communicator* comm, const SharedSetting& setting, int steps) {
  SharedRank rank(comm, setting);
  SharedOutcome outcome;
  for (int i = 0; i < steps; ++i) {
    outcome.block = rank.step(i);
    outcome.losses.push_back(outcome.block.loss);
    outcome.norms.push_back(outcome.block.grad_norm);
  }
  outcome.weights = rank.weights();
  return outcome;
}

inline void expect_close(const std::vector<float>& got, const std::vector<float>& expected,
                         float relative) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], relative * std::abs(expected[i])) << "step " << i;
  }
}

inline void expect_same(const SharedOutcome& a, const SharedOutcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_TRUE(a.weights == b.weights);
}

}  // namespace llmc::testing
