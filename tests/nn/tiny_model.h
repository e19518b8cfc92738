#pragma once

// Tiny models with weights for which no gradient is trivial, and what tests compare of them.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/core/rng.h"
#include "llmc/nn/transformer.h"
#include "support/tensor_values.h"

namespace llmc::testing {

struct TokenBatch {
  std::vector<std::int32_t> tokens, targets;  // (B, T)
};

/// Random ids; every `ignore_every`-th target is -1.
inline TokenBatch random_batch(std::int64_t vocab_size, std::int64_t rows, std::uint32_t seed,
                               std::int64_t ignore_every = 0) {
  Mt19937 rng(seed);
  TokenBatch batch;
  const auto vocab = static_cast<std::uint32_t>(vocab_size);
  for (std::int64_t i = 0; i < rows; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(rng.next_u32() % vocab));
    const auto target = static_cast<std::int32_t>(rng.next_u32() % vocab);
    batch.targets.push_back(ignore_every > 0 && i % ignore_every == 1 ? -1 : target);
  }
  return batch;
}

/// Sharp attention, norm weights away from one, biases away from zero; padding stays zero.
inline void randomise(Stream& stream, const ParameterSet& parameters, std::uint32_t seed) {
  Mt19937 rng(seed);
  for (ParameterSet::Id id = 0; id < parameters.table().size(); ++id) {
    const Parameter& p = parameters.table()[id];
    std::vector<float> values(static_cast<std::size_t>(p.shape.numel()), 0.0f);
    std::size_t drawn = values.size();
    float mean = 0.0f, stddev = 0.1f;
    if (p.init.kind == Initialiser::Kind::kOnes) {
      mean = 1.0f;
      stddev = 0.2f;
    } else if (p.init.kind == Initialiser::Kind::kNormal) {
      const bool embedding = p.bucket == 0;
      stddev = embedding ? 0.3f : 0.8f / std::sqrt(static_cast<float>(p.shape.dim(1)));
      if (p.init.rows > 0) drawn = static_cast<std::size_t>(p.init.rows * p.shape.dim(1));
    }
    rng.fill_normal({values.data(), drawn}, mean, stddev);
    write_values(stream, parameters.value(id), values);
  }
}

inline Transformer make_model(const Device& device, const ModelConfig& config,
                              const TransformerOptions& options, std::uint32_t seed = 1) {
  Transformer model(device, config, options);
  model.allocate();
  randomise(model.stream(), model.parameters(), seed);
  return model;
}

inline Transformer make_model(const ModelConfig& config, const TransformerOptions& options,
                              int threads = 1, std::uint32_t seed = 1) {
  return make_model(Device::open({.threads = threads}), config, options, seed);
}

/// All gradients, bucket by bucket with padding, in one vector.
inline std::vector<float> all_gradients(Transformer& model) {
  std::vector<float> all;
  for (std::size_t b = 0; b < model.parameters().buckets().size(); ++b) {
    const auto part = read_values(model.stream(), model.parameters().bucket_gradients(b));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

inline double l2(const std::vector<float>& a) {
  double sum = 0;
  for (const float x : a) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

/// ‖a − b‖ / ‖b‖.
inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
  }
  return std::sqrt(difference) / l2(b);
}

/// qkv.bias without its key part, whose gradient is nothing but rounding noise. qkv_bias: (3C).
inline std::vector<float> without_key_bias(std::vector<float> qkv_bias) {
  const auto third = static_cast<std::ptrdiff_t>(qkv_bias.size() / 3);
  qkv_bias.erase(qkv_bias.begin() + third, qkv_bias.begin() + 2 * third);
  return qkv_bias;
}

}  // namespace llmc::testing
