#pragma once

// A model small enough to be trained and saved many times in a test.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "llmc/core/file.h"
#include "llmc/core/rng.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"
#include "support/tensor_values.h"

namespace llmc::testing {

inline const ModelConfig kTinyConfig = ModelConfig::gpt2(2, 2, 6, 5, 11);

struct TinyRun {
  explicit TinyRun(DType dtype = DType::kF32, bool master_weights = true,
                   const ModelConfig& config = kTinyConfig)
      : model(Device::open({.threads = 1}), config, {.micro_batch = 2, .dtype = dtype}),
        optimizer(model.parameters(), {.weight_decay = 0.1f}, {.grad_clip = 1.0f}, master_weights) {
    model.allocate();
    optimizer.allocate(model.stream().device());
  }

  /// Random weights and a fresh optimizer.
  void begin(std::uint32_t seed = 1) {
    model.init(seed);
    optimizer.start(model.stream());
  }

  /// One step on a batch that depends on its number only; returns the loss before it.
  float step(std::int64_t index) {
    Mt19937 rng(static_cast<std::uint32_t>(100 + index));
    std::vector<std::int32_t> tokens(10);
    std::vector<std::int32_t> targets(10);
    for (auto* ids : {&tokens, &targets}) {
      for (auto& id : *ids) id = static_cast<std::int32_t>(rng.next_u32() % 11);
    }
    model.begin_step({.lr = 0.01f, .seed = 3, .step = index, .nominal_tokens = 10});
    model.forward(tokens, targets);
    model.backward();
    optimizer.step(model.stream(), model.step_block());
    return model.read_step_block().loss;
  }

  /// The bytes of every weight.
  std::string weights() {
    std::string all;
    for (ParameterSet::Id id = 0; id < model.parameters().table().size(); ++id) {
      append(all, model.parameters().value(id));
    }
    return all;
  }
  /// The bytes of the optimizer's state and its guard.
  std::string state() {
    std::string all;
    optimizer.visit_state([&](const StatePiece& piece) { append(all, piece.tensor); });
    const StepGuard guard = optimizer.read_guard(model.stream());
    return all + std::string(reinterpret_cast<const char*>(&guard), sizeof guard);
  }

  Transformer model;
  AdamW optimizer;

 private:
  void append(std::string& all, const Tensor& tensor) {
    const std::vector<char> part = read_bytes(model.stream(), tensor);
    all.append(part.begin(), part.end());
  }
};

/// Makes a file of these bytes without syncing it, so that tests can make many.
inline void put_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);
  AppendFile(path).append(bytes);
}

}  // namespace llmc::testing
