// Ten AdamW steps of two tiny GPT-2s against what PyTorch computed (python_ref/README.md).

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "llmc/io/safetensors.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"
#include "support/tensor_values.h"

namespace llmc {
namespace {

constexpr double kTolerance = 1e-5;

class AdamWGolden : public ::testing::TestWithParam<const char*> {};

/// ‖a − b‖ / ‖b‖ over the elements that `counts` says count.
template <class Counts>
double relative_error(const std::vector<float>& a, const std::vector<float>& b, Counts counts) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (!counts(i)) continue;
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST_P(AdamWGolden, TenSteps) {
  SafetensorsReader golden(std::filesystem::path(LLMC_GOLDEN_DIR) / GetParam());
  const auto integer = [&](const char* key) { return std::stoll(golden.metadata().at(key)); };
  const auto number = [&](const char* key) { return std::stof(golden.metadata().at(key)); };

  const ModelConfig config =
      ModelConfig::gpt2(integer("n_layer"), integer("n_head"), integer("n_embd"),
                        integer("block_size"), integer("vocab_size"));
  Transformer model(Device::open(), config, {.micro_batch = integer("B"), .seq_len = integer("T")});
  AdamW optimizer(model.parameters(),
                  {.beta1 = number("beta1"),
                   .beta2 = number("beta2"),
                   .eps = number("eps"),
                   .weight_decay = number("weight_decay")},
                  {.grad_clip = number("grad_clip")});
  model.allocate();
  optimizer.allocate(model.stream().device());
  for (const Parameter& p : model.parameters().table()) {
    golden.read(model.stream(), model.parameters().value(p.name), "param." + p.name);
  }
  optimizer.start(model.stream());

  const auto tokens = golden.values<std::int32_t>("tokens");
  const auto targets = golden.values<std::int32_t>("targets");
  const auto step_loss = golden.values<float>("step_loss");
  const auto step_norm = golden.values<float>("step_norm");
  ASSERT_EQ(step_loss.size(), 10u);
  for (std::size_t step = 0; step < step_loss.size(); ++step) {
    model.begin_step({.lr = number("lr"),
                      .seed = 1,
                      .step = static_cast<std::int64_t>(step),
                      .nominal_tokens = static_cast<double>(tokens.size())});
    model.forward(tokens, targets);
    model.backward();
    optimizer.step(model.stream(), model.step_block());
    const StepBlock block = model.read_step_block();
    EXPECT_NEAR(block.loss, step_loss[step], kTolerance * step_loss[step]) << step;
    EXPECT_NEAR(block.grad_norm, step_norm[step], kTolerance * step_norm[step]) << step;
    EXPECT_EQ(block.updates, static_cast<std::int64_t>(step) + 1);
  }
  for (const Parameter& p : model.parameters().table()) {
    // The gradient of the key bias is rounding noise around zero: its rows do not count.
    const auto third = static_cast<std::size_t>(config.n_embd);
    const bool is_qkv_bias = p.name.ends_with("attn.qkv.bias");
    const auto counts = [&](std::size_t i) { return !is_qkv_bias || i / third != 1; };
    EXPECT_LT(relative_error(testing::read_values(model.stream(), model.parameters().value(p.name)),
                             golden.values<float>("after." + p.name), counts),
              kTolerance)
        << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(TinyGpt2, AdamWGolden,
                         ::testing::Values("tiny_gpt2_a.safetensors", "tiny_gpt2_b.safetensors"));

}  // namespace
}  // namespace llmc
