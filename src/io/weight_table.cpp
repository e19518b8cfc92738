#include "io/weight_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::string_view kBlocks = "blocks.";

/// Length of "blocks.<l>." in front of a name, 0 where there is none.
std::size_t block_prefix(std::string_view name) {
  if (!name.starts_with(kBlocks)) return 0;
  const std::size_t dot = name.find('.', kBlocks.size());
  return dot == std::string_view::npos ? 0 : dot + 1;
}

}  // namespace

const std::array<WeightKind, 16> kWeightKinds{
    {{"wte", "wte.weight", false, false},
     {"wpe", "wpe.weight", false, false},
     {"ln1.weight", "ln_1.weight", true, false},
     {"ln1.bias", "ln_1.bias", true, false},
     {"attn.qkv.weight", "attn.c_attn.weight", true, true},
     {"attn.qkv.bias", "attn.c_attn.bias", true, false},
     {"attn.proj.weight", "attn.c_proj.weight", true, true},
     {"attn.proj.bias", "attn.c_proj.bias", true, false},
     {"ln2.weight", "ln_2.weight", true, false},
     {"ln2.bias", "ln_2.bias", true, false},
     {"mlp.fc.weight", "mlp.c_fc.weight", true, true},
     {"mlp.fc.bias", "mlp.c_fc.bias", true, false},
     {"mlp.proj.weight", "mlp.c_proj.weight", true, true},
     {"mlp.proj.bias", "mlp.c_proj.bias", true, false},
     {"ln_f.weight", "ln_f.weight", false, false},
     {"ln_f.bias", "ln_f.bias", false, false}}};

const WeightKind& kind_of(std::string_view name) {
  const std::string_view rest = name.substr(block_prefix(name));
  for (const WeightKind& kind : kWeightKinds) {
    if (kind.name == rest && kind.in_block == (rest.size() != name.size())) return kind;
  }
  fail(ErrorKind::kInput, "weights", "expected the name of a GPT-2's weight, got '", name, "'");
}

std::string hf_name_of(std::string_view name) {
  const std::string_view hf_name = kind_of(name).hf_name;
  const std::size_t prefix = block_prefix(name);
  if (prefix == 0) return std::string(hf_name);
  return concat("h.", name.substr(kBlocks.size(), prefix - kBlocks.size()), hf_name);
}

std::string WeightKind::full_name(std::int64_t layer) const {
  return in_block ? concat("blocks.", layer, ".", name) : std::string(name);
}

std::string WeightKind::full_hf_name(std::int64_t layer) const {
  return in_block ? concat("h.", layer, ".", hf_name) : std::string(hf_name);
}

Shape WeightKind::shape(const ModelConfig& config, std::int64_t vocab_rows) const {
  const std::int64_t C = config.n_embd;
  if (name == "wte") return {vocab_rows, C};
  if (name == "wpe") return {config.block_size, C};
  if (name == "attn.qkv.weight") return {3 * C, C};
  if (name == "attn.qkv.bias") return {3 * C};
  if (name == "attn.proj.weight") return {C, C};
  if (name == "mlp.fc.weight") return {4 * C, C};
  if (name == "mlp.fc.bias") return {4 * C};
  if (name == "mlp.proj.weight") return {C, 4 * C};
  return {C};
}

std::vector<WeightId> weights_by_kind(std::int64_t n_layer) {
  std::vector<WeightId> weights;
  for (const WeightKind& kind : kWeightKinds) {
    if (!kind.in_block) weights.push_back({&kind, -1});
    for (std::int64_t l = 0; kind.in_block && l < n_layer; ++l) weights.push_back({&kind, l});
  }
  return weights;
}

std::vector<WeightId> weights_by_layer(std::int64_t n_layer) {
  std::vector<WeightId> weights;
  const auto first_in_block = kWeightKinds.begin() + 2;
  const auto last_in_block = kWeightKinds.end() - 2;
  for (auto kind = kWeightKinds.begin(); kind != first_in_block; ++kind) {
    weights.push_back({&*kind, -1});
  }
  for (std::int64_t l = 0; l < n_layer; ++l) {
    for (auto kind = first_in_block; kind != last_in_block; ++kind) weights.push_back({&*kind, l});
  }
  for (auto kind = last_in_block; kind != kWeightKinds.end(); ++kind)
    weights.push_back({&*kind, -1});
  return weights;
}

ReadElements padded_with_zeros(std::int64_t used, DType dtype, ReadElements read) {
  return [=, read = std::move(read)](std::int64_t begin, std::int64_t count, void* out) {
    const std::int64_t stored = std::clamp<std::int64_t>(used - begin, 0, count);
    if (stored > 0) read(begin, stored, out);
    const auto bytes = [&](std::int64_t n) { return static_cast<std::size_t>(n) * size_of(dtype); };
    std::memset(static_cast<char*>(out) + bytes(stored), 0, bytes(count - stored));
  };
}

void require_gpt2(const ModelConfig& config, std::string_view what, bool any_eps) {
  ModelConfig gpt2 = ModelConfig::gpt2(config.n_layer, config.n_head, config.n_embd,
                                       config.block_size, config.vocab_size);
  if (any_eps) gpt2.norm_eps = config.norm_eps;
  if (config == gpt2) return;
  const bool only_eps = [&] {
    gpt2.norm_eps = config.norm_eps;
    return config == gpt2;
  }();
  if (only_eps) {
    fail(ErrorKind::kConfig, "weights", "cannot write ", what, ": expected norm_eps 1e-05, got ",
         config.norm_eps, ", which the format cannot express");
  }
  fail(ErrorKind::kConfig, "weights", "cannot write ", what,
       ": expected a plain GPT-2, the only model that the format describes");
}

}  // namespace llmc
