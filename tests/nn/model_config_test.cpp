#include "llmc/nn/model_config.h"

#include <gtest/gtest.h>

#include <string>

#include "llmc/core/error.h"

namespace llmc {
namespace {

std::string config_error(const ModelConfig& config) {
  try {
    config.validate();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(ModelConfig, PresetsHaveTheKnownNumberOfParameters) {
  const struct {
    const char* name;
    std::int64_t parameters;
  } cases[] = {
      {"d6", 30357504},
      {"gpt2-124M", 124475904},
      {"d12", 124475904},
      {"gpt2:d12", 124475904},
      {"gpt2-350M", 354871296},
      {"gpt2-774M", 774090240},
      {"gpt2-1558M", 1557686400},
      {"d60", 2754259200},
      {"d72", 7316887680},
      {"d84", 12220657920},
      {"gpt3:c384", 30750720},
      {"gpt3-125M", 125262336},
      {"gpt3:c768", 125262336},
      {"gpt3-350M", 355919872},
      {"gpt3-760M", 760372224},
      {"gpt3-1.3B", 1315819520},
      {"gpt3-2.7B", 2651673600},
      {"gpt3-6.7B", 6658596864},
      {"gpt3-175B", 174604836864},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(ModelConfig::preset(c.name).num_parameters(), c.parameters) << c.name;
  }
  EXPECT_EQ(ModelConfig::preset("gpt2-124M").padded_vocab_size(), 50304);
  EXPECT_EQ(ModelConfig::preset("gpt3-760M").block_size, 2048);
  EXPECT_EQ(ModelConfig::preset("gpt3-13B").head_dim, 128);
}

TEST(ModelConfig, EveryPresetNameIsAccepted) {
  for (const std::string& name : preset_names()) {
    EXPECT_NO_THROW(ModelConfig::preset(name).validate()) << name;
  }
  EXPECT_EQ(ModelConfig(), ModelConfig::preset("gpt2-124M"));
}

TEST(ModelConfig, UnknownPresetsNameTheKnownOnes) {
  for (const char* name : {"", "gpt2", "gpt2-124m", "d13", "gpt2:c768", "gpt3:d12", "gpt3:c5140"}) {
    try {
      ModelConfig::preset(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_NE(std::string(error.what()).find("gpt2-1558M"), std::string::npos) << error.what();
    }
  }
}

TEST(ModelConfig, FlopsPerToken) {
  EXPECT_EQ(ModelConfig::preset("gpt2-124M").flops_per_token(1024), 803478528.0);
}

TEST(ModelConfig, RefusesSizesByName) {
  EXPECT_THROW(ModelConfig::gpt2(2, 3, 40), Error);
  EXPECT_THROW(ModelConfig::gpt2(2, 0, 40), Error);
  EXPECT_THROW(ModelConfig::gpt2(0, 2, 40), Error);
  EXPECT_THROW(ModelConfig::gpt2(2, 2, 40, 0), Error);
  EXPECT_THROW(ModelConfig::gpt2(2, 2, 40, 16, 0), Error);
  ModelConfig config;
  config.vocab_size = -5;
  EXPECT_NE(config_error(config).find("vocab_size: expected"), std::string::npos);
  config = {};
  config.block_size = std::int64_t{1} << 40;
  EXPECT_NE(config_error(config).find("block_size: expected"), std::string::npos);
  config = {};
  config.norm_eps = 0.0f;
  EXPECT_NE(config_error(config).find("norm_eps: expected"), std::string::npos);
}

TEST(ModelConfig, RefusesWhatIsNotBuiltByName) {
  EXPECT_EQ(config_error(ModelConfig()), "");
  const auto refused = [](const char* name, auto change) {
    ModelConfig config;
    change(config);
    const std::string error = config_error(config);
    EXPECT_NE(error.find(std::string(name) + ": expected"), std::string::npos) << error;
    EXPECT_NE(error.find("not built"), std::string::npos) << error;
  };
  refused("norm", [](ModelConfig& c) { c.norm = NormKind::kRmsNorm; });
  refused("position", [](ModelConfig& c) { c.position = PositionKind::kRope; });
  refused("mlp", [](ModelConfig& c) { c.mlp = MlpKind::kSwiGlu; });
  refused("bias", [](ModelConfig& c) { c.bias = false; });
  refused("tied_head", [](ModelConfig& c) { c.tied_head = false; });
  refused("n_kv_head", [](ModelConfig& c) { c.n_kv_head = 4; });
  refused("head_dim", [](ModelConfig& c) { c.head_dim = 128; });
  refused("ffn_size", [](ModelConfig& c) { c.ffn_size = 2048; });
}

}  // namespace
}  // namespace llmc
