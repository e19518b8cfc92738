#pragma once

#include <string_view>

namespace llmc {

// Names in Hugging Face's folders.
inline constexpr std::string_view kHfConfigFile = "config.json";
inline constexpr std::string_view kHfWeightsFile = "model.safetensors";
inline constexpr std::string_view kHfIndexFile = "model.safetensors.index.json";
/// Before the names of a GPT2LMHeadModel's weights.
inline constexpr std::string_view kHfPrefix = "transformer.";
inline constexpr std::string_view kHfHead = "lm_head.weight";

}  // namespace llmc
