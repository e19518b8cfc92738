#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "llmc/core/dtype.h"
#include "llmc/nn/model_config.h"

namespace llmc {

/// The model that a Hugging Face config.json describes. Every error is an input error that names
/// `path` and what in it is not a GPT-2 as this library computes it.
ModelConfig model_from_hf_config(const std::string& text, const std::filesystem::path& path);

/// Ids between which a text stands, where they are known.
struct HfTextIds {
  std::optional<std::int32_t> begin;
  std::optional<std::int32_t> end;
};

/// config.json of a GPT-2 whose weights are stored as `dtype`.
std::string hf_config_text(const ModelConfig& config, DType dtype, const HfTextIds& ids);

}  // namespace llmc
