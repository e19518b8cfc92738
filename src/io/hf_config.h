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

/// config.json of a GPT-2 whose weights are stored as `dtype`. end_of_text: null where not known.
std::string hf_config_text(const ModelConfig& config, DType dtype,
                           std::optional<std::int32_t> end_of_text);

}  // namespace llmc
