#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/token_file.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"
#include "llmc/train/trainer.h"

namespace llmc::testing {

/// A token file in which each token is likely to be the one before plus one, so that there is
/// something to learn.
inline void write_tokens(const std::filesystem::path& path, std::int64_t count,
                         std::int32_t vocab_size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::int32_t token = 0;
  for (std::int32_t& t : tokens) {
    token = random() % 4 == 0 ? static_cast<std::int32_t>(random() % vocab_size)
                              : (token + 1) % vocab_size;
    t = token;
  }
  TokenFileWriter writer(path, TokenFormat::kU16);
  writer.write(tokens);
  writer.commit();
}

inline TrainConfig tiny_config() {
  TrainConfig config;
  config.micro_batch = 2;
  config.seq_len = 8;
  config.tokens_per_step = 32;
  config.max_steps = 20;
  config.lr = 3e-3;
  config.warmup_steps = 3;
  config.val_every = 0;
  config.sample_every = 0;
  config.checkpoint_every = 0;
  return config;
}

/// Keeps every event.
struct Recorder : EventSink {
  std::vector<Event> events;

  SinkAction on_event(const Event& event) override {
    events.push_back(event);
    return SinkAction::kContinue;
  }
  template <class T>
  std::vector<T> all() const {
    std::vector<T> out;
    for (const Event& event : events) {
      if (const T* e = std::get_if<T>(&event)) out.push_back(*e);
    }
    return out;
  }
  template <class T>
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> out;
    for (const T& e : all<T>()) out.push_back(step_of(Event(e)));
    return out;
  }
  std::vector<float> losses() const {
    std::vector<float> out;
    for (const StepEvent& e : all<StepEvent>()) out.push_back(e.loss);
    return out;
  }
};

/// A tiny model with data and optimizer, ready for a Trainer.
struct TinyRun {
  explicit TinyRun(const TrainConfig& c, const std::filesystem::path& data,
                   DType dtype = DType::kF32, Communicator* comm = nullptr,
                   const ModelConfig& size = ModelConfig::gpt2(2, 2, 16, 16, 61))
      : config(c),
        device(Device::open({1, "auto"})),
        model(device, size, model_options(c, dtype, comm)),
        source(glob_files(data.string()), loader_options(c)),
        optimizer(model.parameters(), {}, GuardOptions{1.0f, 0.0f, 0.0f}, true, {comm}) {
    model.allocate();
    optimizer.allocate(device);
    model.init(7);
    optimizer.start(model.stream());
  }

  static TransformerOptions model_options(const TrainConfig& c, DType dtype, Communicator* comm) {
    TransformerOptions options;
    if (comm) options.ranks = comm->size();
    options.micro_batch = c.micro_batch;
    options.seq_len = c.seq_len;
    options.dtype = dtype;
    return options;
  }
  static DataLoaderOptions loader_options(const TrainConfig& c) {
    DataLoaderOptions options;
    options.B = c.micro_batch;
    options.T = c.seq_len;
    options.shuffle = c.shuffle;
    options.seed = 3;
    return options;
  }

  TrainConfig config;
  Device device;
  Transformer model;
  DataLoader source;
  AdamW optimizer;
};

}  // namespace llmc::testing
