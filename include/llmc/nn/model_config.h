#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

enum class NormKind { kLayerNorm, kRmsNorm };
enum class PositionKind { kLearned, kRope };
enum class MlpKind { kGelu, kSwiGlu };

/// "layernorm", "rmsnorm"; "learned", "rope"; "gelu", "swiglu".
std::string_view name_of(NormKind kind);
std::string_view name_of(PositionKind kind);
std::string_view name_of(MlpKind kind);

/// One decoder-only transformer, described by data. The defaults are the smallest GPT-2.
struct ModelConfig {
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_kv_head = 12;
  std::int64_t head_dim = 64;
  std::int64_t n_embd = 768;
  std::int64_t ffn_size = 3072;     ///< width inside the MLP
  std::int64_t vocab_size = 50257;  ///< V: token ids are below it
  std::int64_t block_size = 1024;   ///< positions the model knows
  NormKind norm = NormKind::kLayerNorm;
  float norm_eps = 1e-5f;
  PositionKind position = PositionKind::kLearned;
  float rope_theta = 10000.0f;  ///< read only with rope
  float rope_scaling = 1.0f;    ///< read only with rope
  MlpKind mlp = MlpKind::kGelu;
  bool bias = true;       ///< linear layers and norms have biases
  bool tied_head = true;  ///< the token embedding is also the output matrix

  bool operator==(const ModelConfig&) const = default;

  /// A GPT-2 of any size: n_kv_head = n_head, head_dim = n_embd / n_head, ffn_size = 4·n_embd.
  /// Throws a config error if n_head does not divide n_embd, or a size is not positive.
  static ModelConfig gpt2(std::int64_t n_layer, std::int64_t n_head, std::int64_t n_embd,
                          std::int64_t block_size = 1024, std::int64_t vocab_size = 50257);

  /// The config of a name out of preset_names(), or of one of llm.c's descriptors: "d12",
  /// "gpt2:d12", "gpt3:c768". Throws a config error that lists the names.
  static ModelConfig preset(std::string_view name);

  /// Vp: vocab_size rounded up to a multiple of 128, the rows of the embedding in memory. Rows from
  /// V on are zero and stay zero.
  std::int64_t padded_vocab_size() const;

  /// Every parameter, padding rows included.
  std::int64_t num_parameters() const;

  /// Training FLOPs per token at T tokens a row: 6·P + 6·L·NH·HS·T, the causal half of attention.
  double flops_per_token(std::int64_t tokens) const;

  /// Throws a config error that names the first value out of range, or the first combination that
  /// is described but not built.
  void validate() const;
};

/// "gpt2-124M", ..., "gpt3-175B", smallest first.
std::vector<std::string> preset_names();

}  // namespace llmc
