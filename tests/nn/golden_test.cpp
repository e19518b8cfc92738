// The whole model against what PyTorch computed in fp64 (python_ref/write_golden.py).

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "llmc/io/safetensors.h"
#include "nn/tiny_model.h"

namespace llmc {
namespace {

constexpr double kTolerance = 1e-5;  // relative L2 per tensor, fp32

std::int64_t number(const SafetensorsReader& file, const std::string& key) {
  return std::stoll(file.metadata().at(key));
}

ModelConfig config_of(const SafetensorsReader& file) {
  return ModelConfig::gpt2(number(file, "n_layer"), number(file, "n_head"), number(file, "n_embd"),
                           number(file, "block_size"), number(file, "vocab_size"));
}

std::filesystem::path golden_file(const std::string& name) {
  return std::filesystem::path(LLMC_GOLDEN_DIR) / (name + ".safetensors");
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  Golden()
      : file_(golden_file(GetParam())),
        config_(config_of(file_)),
        B_(number(file_, "B")),
        T_(number(file_, "T")),
        tokens_(file_.values<std::int32_t>("tokens")),
        targets_(file_.values<std::int32_t>("targets")) {}

  Transformer model(std::int64_t head_chunk_bytes = std::int64_t{1} << 20) {
    TransformerOptions options;
    options.micro_batch = B_;
    options.seq_len = T_;
    options.head_chunk_bytes = head_chunk_bytes;
    Transformer model(Device::open({.threads = 2}), config_, options);
    model.allocate();
    for (const Parameter& p : model.parameters().table()) {
      file_.read(model.stream(), model.parameters().value(p.name), "param." + p.name);
    }
    return model;
  }
  double counted() const {
    return static_cast<double>(
        std::count_if(targets_.begin(), targets_.end(), [](std::int32_t t) { return t >= 0; }));
  }
  void expect_gradients(Transformer& model) {
    for (const Parameter& p : model.parameters().table()) {
      auto got = testing::read_values(model.stream(), model.parameters().gradient(p.name));
      auto expected = file_.values<float>("grad." + p.name);
      if (p.name.ends_with("qkv.bias")) {
        const auto third = static_cast<std::ptrdiff_t>(got.size() / 3);
        const std::vector<float> query(got.begin(), got.begin() + third);
        const std::vector<float> key(got.begin() + third, got.begin() + 2 * third);
        EXPECT_LT(testing::l2(key), kTolerance * testing::l2(query)) << p.name;
        got = testing::without_key_bias(got);
        expected = testing::without_key_bias(expected);
      }
      EXPECT_LT(testing::relative_l2(got, expected), kTolerance) << p.name;
    }
  }

  SafetensorsReader file_;
  ModelConfig config_;
  std::int64_t B_, T_;
  std::vector<std::int32_t> tokens_, targets_;
};

TEST_P(Golden, Logits) {
  Transformer m = model();
  std::vector<float> logits(static_cast<std::size_t>(B_ * T_ * config_.vocab_size));
  m.logits(logits, tokens_);
  EXPECT_LT(testing::relative_l2(logits, file_.values<float>("logits")), kTolerance);
}

TEST_P(Golden, Losses) {
  Transformer m = model();
  std::vector<float> losses(tokens_.size());
  const LossSum sum = m.evaluate(tokens_, targets_, 0, 0, losses);
  EXPECT_LT(testing::relative_l2(losses, file_.values<float>("losses")), kTolerance);
  EXPECT_EQ(static_cast<double>(sum.counted_tokens), counted());
  const double loss = file_.values<float>("loss")[0];
  EXPECT_NEAR(sum.loss_sum / counted(), loss, kTolerance * loss);
}

TEST_P(Golden, Gradients) {
  for (const std::int64_t chunk_bytes : {std::int64_t{1} << 20, std::int64_t{5} << 9}) {
    Transformer m = model(chunk_bytes);
    m.begin_step({.lr = 0, .seed = 0, .step = 0, .nominal_tokens = counted()});
    m.forward(tokens_, targets_);
    m.backward();
    const StepBlock block = m.read_step_block();
    const double loss = file_.values<float>("loss")[0];
    EXPECT_NEAR(block.loss_sum / counted(), loss, kTolerance * loss);
    EXPECT_EQ(static_cast<double>(block.counted_tokens), counted());
    expect_gradients(m);
  }
}

// One row per micro-step: the same gradients.
TEST_P(Golden, GradientsOfMicroSteps) {
  Transformer m = model();
  m.begin_step({.lr = 0, .seed = 0, .step = 0, .nominal_tokens = counted()}, static_cast<int>(B_));
  for (std::int64_t b = 0; b < B_; ++b) {
    const auto row = [&](const std::vector<std::int32_t>& ids) {
      return std::span(ids).subspan(static_cast<std::size_t>(b * T_), static_cast<std::size_t>(T_));
    };
    m.forward(row(tokens_), row(targets_), 1);
    m.backward();
  }
  expect_gradients(m);
}

INSTANTIATE_TEST_SUITE_P(TinyGpt2, Golden, ::testing::Values("tiny_gpt2_a", "tiny_gpt2_b"),
                         [](const auto& test) { return test.param; });

TEST(GoldenInit, WeightsOfASeed) {
  SafetensorsReader file(golden_file("tiny_init"));
  Transformer m(Device::open({.threads = 1}), config_of(file), {});
  m.allocate();
  m.init(static_cast<std::uint32_t>(number(file, "seed")));
  for (const Parameter& p : m.parameters().table()) {
    const auto got = testing::read_values(m.stream(), m.parameters().value(p.name));
    const auto expected = file.values<float>("param." + p.name);
    ASSERT_EQ(got.size(), expected.size()) << p.name;
    const double tolerance = 2e-6 * p.init.stddev;  // 0 for constants
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], tolerance) << p.name << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace llmc
