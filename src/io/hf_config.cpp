#include "io/hf_config.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "llmc/core/error.h"

namespace llmc {
namespace {

using nlohmann::json;

/// A config.json and its name, for messages.
class HfConfig {
 public:
  HfConfig(const std::string& text, const std::filesystem::path& path) : path_(path) {
    constexpr int kMaxDepth = 32;
    const auto check = [&](int depth, json::parse_event_t, const json&) {
      if (depth > kMaxDepth) fail_here("expected at most ", kMaxDepth, " levels");
      return true;
    };
    try {
      value_ = json::parse(text, check);
    } catch (const json::exception&) {
      fail_here("expected JSON");
    }
    if (!value_.is_object()) fail_here("expected a JSON object");
  }

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail(ErrorKind::kInput, "hf_config", path_.string(), ": ", parts...);
  }

  /// Null where there is no such key, or null stands under it.
  const json* find(const char* key) const {
    const auto found = value_.find(key);
    return found == value_.end() || found->is_null() ? nullptr : &*found;
  }
  std::int64_t size(const char* key, const char* old_key = nullptr) const {
    const json* value = find(key);
    if (value == nullptr && old_key != nullptr) value = find(old_key);
    constexpr std::int64_t kMax = (std::int64_t{1} << 31) - 1;
    if (value == nullptr) fail_here("expected ", key, ", got none");
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(kMax)) {
      fail_here(key, ": expected a whole number of 1 to ", kMax, ", got ", printed(*value));
    }
    return value->get<std::int64_t>();
  }
  /// Refuses a key that is there with another value than the one that this library computes with.
  void require(const char* key, const json& expected) const {
    const json* value = find(key);
    if (value == nullptr || *value == expected) return;
    fail_here(key, ": expected ", printed(expected), ", got ", printed(*value),
              ", which is not built");
  }
  /// A value in one line, cut where it is long.
  static std::string printed(const json& value) {
    constexpr std::size_t kMax = 80;
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > kMax) text.replace(kMax, std::string::npos, "...");
    return text;
  }

 private:
  const std::filesystem::path& path_;
  json value_;
};

void check_kind(const HfConfig& config) {
  const json* type = config.find("model_type");
  if (type == nullptr) config.fail_here("expected model_type \"gpt2\", got none");
  if (*type != "gpt2") {
    config.fail_here("model_type: expected \"gpt2\", the only architecture that is built, got ",
                     HfConfig::printed(*type));
  }
  const json* activation = config.find("activation_function");
  // Two names of the tanh form.
  if (activation != nullptr && *activation != "gelu_new" && *activation != "gelu_pytorch_tanh") {
    config.fail_here("activation_function: expected \"gelu_new\", got ",
                     HfConfig::printed(*activation), ", which is not built");
  }
  config.require("scale_attn_weights", true);
  config.require("scale_attn_by_inverse_layer_idx", false);
  config.require("add_cross_attention", false);
  config.require("tie_word_embeddings", true);
  if (config.find("quantization_config") != nullptr) {
    config.fail_here("quantization_config: expected plain F32 or BF16 weights, got quantised ones");
  }
}

/// The double that is printed as shortly as the float: 1e-05, not 9.99999974737875e-06.
double shortest(float value) {
  std::array<char, 32> text{};
  *std::to_chars(text.data(), text.data() + text.size() - 1, value).ptr = '\0';
  return std::strtod(text.data(), nullptr);
}

}  // namespace

ModelConfig model_from_hf_config(const std::string& text, const std::filesystem::path& path) {
  const HfConfig file(text, path);
  check_kind(file);
  const std::int64_t n_head = file.size("n_head");
  const std::int64_t n_embd = file.size("n_embd");
  if (n_embd % n_head != 0) {
    file.fail_here("n_embd: expected a multiple of n_head (", n_head, "), got ", n_embd);
  }
  if (file.find("n_inner") != nullptr && file.size("n_inner") != 4 * n_embd) {
    file.fail_here("n_inner: expected 4 * n_embd = ", 4 * n_embd, ", got ", file.size("n_inner"),
                   ", which is not built");
  }
  ModelConfig config =
      ModelConfig::gpt2(file.size("n_layer"), n_head, n_embd, file.size("n_positions", "n_ctx"),
                        file.size("vocab_size"));
  if (const json* eps = file.find("layer_norm_epsilon")) {
    const double value = eps->is_number() ? eps->get<double>() : 0.0;
    config.norm_eps = static_cast<float>(value);
    if (!(config.norm_eps > 0.0f && config.norm_eps < 1.0f)) {
      file.fail_here("layer_norm_epsilon: expected a number between 0 and 1, got ",
                     HfConfig::printed(*eps));
    }
  }
  return config;
}

std::string hf_config_text(const ModelConfig& config, DType dtype, const HfTextIds& ids) {
  const auto or_null = [](std::optional<std::int32_t> id) { return id ? json(*id) : json(); };
  const json out{{"model_type", "gpt2"},
                 {"architectures", {"GPT2LMHeadModel"}},
                 {"n_layer", config.n_layer},
                 {"n_head", config.n_head},
                 {"n_embd", config.n_embd},
                 {"n_inner", nullptr},
                 {"n_positions", config.block_size},
                 {"vocab_size", config.vocab_size},
                 {"layer_norm_epsilon", shortest(config.norm_eps)},
                 {"activation_function", "gelu_new"},
                 {"attn_pdrop", 0.0},
                 {"embd_pdrop", 0.0},
                 {"resid_pdrop", 0.0},
                 {"tie_word_embeddings", true},
                 {"bos_token_id", or_null(ids.begin)},
                 {"eos_token_id", or_null(ids.end)},
                 {"torch_dtype", dtype == DType::kBF16 ? "bfloat16" : "float32"}};
  return out.dump(2) + "\n";
}

}  // namespace llmc
