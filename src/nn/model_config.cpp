#include "llmc/nn/model_config.h"

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::int64_t kVocabMultiple = 128;
// Above it a product of two sizes might not fit 63 bits.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;

struct Preset {
  std::string_view name;        // "" where only the descriptor exists
  std::string_view descriptor;  // of llm.c, without "gpt2:"; "" where it has none
  std::int64_t n_layer, n_embd, n_head, block_size;
};

// GPT-2 (Radford et al., 2019) and GPT-3 (Brown et al., 2020, table 2.1; with dense attention in
// every layer, and 13B as wide as its 40 heads of 128).
constexpr Preset kPresets[] = {
    {"", "d6", 6, 384, 6, 1024},
    {"gpt2-124M", "d12", 12, 768, 12, 1024},
    {"gpt2-350M", "d24", 24, 1024, 16, 1024},
    {"gpt2-774M", "d36", 36, 1280, 20, 1024},
    {"gpt2-1558M", "d48", 48, 1600, 25, 1024},
    {"", "d60", 60, 1920, 30, 1024},
    {"", "d72", 72, 2880, 30, 1024},
    {"", "d84", 84, 3456, 36, 1024},
    {"", "gpt3:c384", 6, 384, 6, 2048},
    {"gpt3-125M", "gpt3:c768", 12, 768, 12, 2048},
    {"gpt3-350M", "gpt3:c1024", 24, 1024, 16, 2048},
    {"gpt3-760M", "gpt3:c1536", 24, 1536, 16, 2048},
    {"gpt3-1.3B", "gpt3:c2048", 24, 2048, 16, 2048},
    {"gpt3-2.7B", "gpt3:c2560", 32, 2560, 32, 2048},
    {"gpt3-6.7B", "gpt3:c4096", 32, 4096, 32, 2048},
    {"gpt3-13B", "", 40, 5120, 40, 2048},
    {"gpt3-175B", "gpt3:c12288", 96, 12288, 96, 2048},
};

void check_size(std::string_view name, std::int64_t value) {
  if (value < 1 || value >= kMaxSize) {
    fail(ErrorKind::kConfig, "model", name, ": expected 1 to ", kMaxSize - 1, ", got ", value);
  }
}

}  // namespace

std::string_view name_of(NormKind kind) {
  return kind == NormKind::kLayerNorm ? "layernorm" : "rmsnorm";
}

std::string_view name_of(PositionKind kind) {
  return kind == PositionKind::kLearned ? "learned" : "rope";
}

std::string_view name_of(MlpKind kind) {
  return kind == MlpKind::kGelu ? "gelu" : "swiglu";
}

ModelConfig ModelConfig::gpt2(std::int64_t n_layer, std::int64_t n_head, std::int64_t n_embd,
                              std::int64_t block_size, std::int64_t vocab_size) {
  check_size("n_head", n_head);
  check_size("n_embd", n_embd);
  if (n_embd % n_head != 0) {
    fail(ErrorKind::kConfig, "model", "n_embd: expected a multiple of n_head = ", n_head, ", got ",
         n_embd);
  }
  ModelConfig config;
  config.n_layer = n_layer;
  config.n_head = n_head;
  config.n_kv_head = n_head;
  config.head_dim = n_embd / n_head;
  config.n_embd = n_embd;
  config.ffn_size = 4 * n_embd;
  config.block_size = block_size;
  config.vocab_size = vocab_size;
  config.validate();
  return config;
}

ModelConfig ModelConfig::preset(std::string_view name) {
  std::string_view descriptor = name;
  if (descriptor.starts_with("gpt2:d")) descriptor.remove_prefix(5);
  for (const Preset& p : kPresets) {
    if (name.empty() || (name != p.name && descriptor != p.descriptor)) continue;
    return gpt2(p.n_layer, p.n_head, p.n_embd, p.block_size);
  }
  std::string names;
  for (const std::string& known : preset_names()) {
    names += names.empty() ? known : ", " + known;
  }
  fail(ErrorKind::kConfig, "model", "preset: expected one of ", names, ", got \"", name, "\"");
}

std::int64_t ModelConfig::padded_vocab_size() const {
  return (vocab_size + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
}

std::int64_t ModelConfig::num_parameters() const {
  const std::int64_t q_width = n_head * head_dim;
  const std::int64_t qkv_width = q_width + 2 * n_kv_head * head_dim;
  const std::int64_t norm_size = 2 * n_embd;
  const std::int64_t attention = qkv_width * (n_embd + 1) + n_embd * (q_width + 1);
  const std::int64_t feed_forward = ffn_size * (n_embd + 1) + n_embd * (ffn_size + 1);
  return (padded_vocab_size() + block_size) * n_embd +
         n_layer * (2 * norm_size + attention + feed_forward) + norm_size;
}

double ModelConfig::flops_per_token(std::int64_t tokens) const {
  return 6.0 * static_cast<double>(num_parameters()) +
         6.0 * static_cast<double>(n_layer * n_head * head_dim) * static_cast<double>(tokens);
}

void ModelConfig::validate() const {
  check_size("n_layer", n_layer);
  check_size("n_head", n_head);
  check_size("n_kv_head", n_kv_head);
  check_size("head_dim", head_dim);
  check_size("n_embd", n_embd);
  check_size("ffn_size", ffn_size);
  check_size("vocab_size", vocab_size);
  check_size("block_size", block_size);
  if (!(norm_eps > 0.0f && norm_eps < 1.0f)) {
    fail(ErrorKind::kConfig, "model", "norm_eps: expected a number between 0 and 1, got ",
         norm_eps);
  }
  const auto require = [](bool built, std::string_view name, const auto& expected,
                          const auto& got) {
    if (built) return;
    fail(ErrorKind::kConfig, "model", name, ": expected ", expected, ", got ", got,
         ", which is not built yet");
  };
  require(norm == NormKind::kLayerNorm, "norm", "layernorm", name_of(norm));
  require(position == PositionKind::kLearned, "position", "learned", name_of(position));
  require(mlp == MlpKind::kGelu, "mlp", "gelu", name_of(mlp));
  require(bias, "bias", "true", "false");
  require(tied_head, "tied_head", "true", "false");
  require(n_kv_head == n_head, "n_kv_head", concat("n_head = ", n_head), n_kv_head);
  require(n_embd == n_head * head_dim, "head_dim",
          concat("n_embd / n_head of ", n_embd, " / ", n_head), head_dim);
  require(ffn_size == 4 * n_embd, "ffn_size", concat("4 * n_embd = ", 4 * n_embd), ffn_size);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    if (!preset.name.empty()) names.emplace_back(preset.name);
  }
  return names;
}

}  // namespace llmc
