#pragma once

// What a Transformer consists of, for the files that define its functions: transformer.cpp
// (planning, training) and transformer_inference.cpp.

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/replay.h"
#include "llmc/nn/block.h"
#include "llmc/nn/embedding.h"
#include "llmc/nn/head.h"
#include "llmc/nn/norm.h"
#include "llmc/nn/transformer.h"

namespace llmc {

struct Sizes {
  std::int64_t batch = 0;   // B
  std::int64_t tokens = 0;  // T
  std::int64_t rows() const { return batch * tokens; }
  auto operator<=>(const Sizes&) const = default;
};

/// What tells one forward or backward pass from another, all else being the same for good.
struct PassKey {
  bool backward = false;
  Sizes sizes;
  bool accumulate = false;
  double nominal_tokens = 0;
  auto operator<=>(const PassKey&) const = default;
};

inline constexpr std::int64_t kAllRows = -1;

/// What a decoding pass depends on, besides the model.
struct DecodeKey {
  const void* logits = nullptr;  ///< of the cache
  std::int64_t batch = 0, max_positions = 0;
  const void* tokens = nullptr;
  std::int64_t rows = 0;

  bool operator==(const DecodeKey&) const = default;
};

/// Where the layers add to a cache: a prompt to one row, or one token to each row.
struct Decoding {
  KvCache* cache = nullptr;
  std::int64_t row = kAllRows;
  Tensor tokens = {};  ///< (B) i32, for all rows
};

struct Transformer::Impl {
  Impl(const Device& opened, const ModelConfig& model, const TransformerOptions& wanted);

  // Checks of what enters.
  void check_allocated() const;
  Sizes sizes(std::int64_t batch, std::int64_t seq_len, bool training = false) const;
  void check_ids(std::string_view what, std::span<const std::int32_t> ids, const Sizes& s,
                 std::int32_t lowest) const;
  void check_room(std::string_view what, std::size_t got, std::int64_t expected) const;
  void begin_inference();

  LayerContext context(bool accumulate = false) {
    return {stream, parameters, activations, accumulate};
  }
  Tensor get(ActivationSet::Id id, const Sizes& s) const {
    return activations.get(id, {s.batch, s.tokens});
  }
  Tensor channels(ActivationSet::Id id, const Sizes& s) const {
    return activations.get(id, {s.batch, s.tokens, config.n_embd});
  }
  Tensor rows_of(ActivationSet::Id id, const Sizes& s) const {
    return activations.get(id, {s.rows(), config.n_embd});
  }
  StepBlock* block(ActivationSet::Id id) const {
    return static_cast<StepBlock*>(activations.get(id).raw());
  }
  void needed(std::size_t bucket) const {
    if (bucket_needed) bucket_needed(bucket);
  }
  void ready(std::size_t bucket, bool final) const {
    if (final && bucket_ready) bucket_ready(bucket);
  }

  void run_layers(const Sizes& s, const Decoding& decoding = {});
  void forward_pass(const Sizes& s, double nominal);
  void backward_pass(const Sizes& s);
  void decode_pass(KvCache& cache, const Tensor& newest);
  void logits_to_host(std::span<float> out, const Tensor& hidden);
  void copy_logits(float* out, const Tensor& logits);
  template <class Pass>
  void replay(const PassKey& key, const Pass& pass);

  ModelConfig config;
  TransformerOptions options;
  Device device;
  Stream stream;
  ParameterSet parameters;
  ActivationSet activations;
  Arena arena;

  std::optional<Embedding> embedding;
  std::vector<Block> blocks;
  std::optional<LayerNorm> final_norm;
  std::optional<LmHead> head;

  ActivationSet::Id tokens, targets, losses;           // (B, T)
  ActivationSet::Id final_x, hidden;                   // (B, T, C); hidden becomes its gradient
  ActivationSet::Id dresidual = ActivationSet::kNone;  // (B, T, C)
  ActivationSet::Id step_block, eval_block;

  Sizes last;                    // of the last forward or evaluate
  bool awaits_backward = false;  // forward has run, backward has not
  int micro_steps = 0;           // of the running step; 0: none was begun
  int micro_step = 0;            // finished ones
  double nominal_tokens = 0;
  std::function<void(std::size_t)> bucket_needed;
  std::function<void(std::size_t)> bucket_ready;
  std::map<PassKey, Replay> replays;  // behind what their work uses
  DecodeKey decode_key;
  Replay decode_replay;
};

}  // namespace llmc
