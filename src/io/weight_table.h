#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/shape.h"
#include "llmc/io/weight_source.h"
#include "llmc/nn/model_config.h"

namespace llmc {

// The weights of a GPT-2 as files of other programs know them. Names and shapes are those of the
// Transformer's parameter table, which a test compares.

/// A weight, or one weight of each block.
struct WeightKind {
  std::string_view name;     ///< in a block without "blocks.<l>."
  std::string_view hf_name;  ///< of Hugging Face; in a block without "h.<l>."
  bool in_block;
  bool transposed;  ///< stored (in, out) by Hugging Face

  /// The parameter's name, and Hugging Face's. layer: read only for those in a block.
  std::string full_name(std::int64_t layer) const;
  std::string full_hf_name(std::int64_t layer) const;
  /// In the parameter table, with `vocab_rows` rows in wte.
  Shape shape(const ModelConfig& config, std::int64_t vocab_rows) const;
};

/// In llm.c's order.
extern const std::array<WeightKind, 16> kWeightKinds;

/// The kind of a parameter's full name; throws an input error for another name.
const WeightKind& kind_of(std::string_view name);
/// Hugging Face's name for a parameter's full name: "h.0.ln_1.bias" for "blocks.0.ln1.bias".
std::string hf_name_of(std::string_view name);

/// A weight of a model: its kind, and its block where it is in one.
struct WeightId {
  const WeightKind* kind;
  std::int64_t layer;
};

/// Every weight, in llm.c's order: each kind over all layers.
std::vector<WeightId> weights_by_kind(std::int64_t n_layer);

/// Every weight, in the order of the parameter table: block after block.
std::vector<WeightId> weights_by_layer(std::int64_t n_layer);

/// Reads the first `used` elements with `read`, and zeros from there on: wte with padding rows from
/// a file that has none, or others.
ReadElements padded_with_zeros(std::int64_t used, DType dtype, ReadElements read);

/// Throws a config error that names `what` for a model other than a GPT-2. any_eps: with another
/// norm_eps it still is one.
void require_gpt2(const ModelConfig& config, std::string_view what, bool any_eps);

}  // namespace llmc
