// A model file of llm.c, its debug state and ten steps from there: of a tiny model that
// python_ref/write_llmc_golden.py writes, and of llm.c's starter pack where there is one.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "io/tiny_run.h"
#include "llmc/data/tokenizer.h"
#include "llmc/io/llmc_format.h"
#include "llmc/io/model_loader.h"
#include "llmc/io/safetensors.h"
#include "support/tensor_values.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

/// Settings of llm.c's two tests: of its mixed-precision program, and of its fp32 programs (which
/// decay biases and norms too; at these rates that does not show).
struct Settings {
  float beta2, weight_decay, grad_clip;
};
constexpr Settings kClipped{0.95f, 0.0f, 1.0f};
constexpr Settings kDecayed{0.999f, 0.01f, 0.0f};
constexpr float kLr = 1e-4f;

/// Errors to allow: of logits and losses absolute, of gradients relative L2 per tensor.
struct Tolerance {
  double logits, loss, gradients;
};

class DebugRun {
 public:
  DebugRun(const fs::path& model, const fs::path& state, const Settings& settings)
      : loader_(model),
        state_(read_llmc_debug_state(state, loader_.config())),
        model_(Device::open(), loader_.config(),
               {.micro_batch = state_.B, .seq_len = state_.T, .dtype = DType::kF32}),
        optimizer_(model_.parameters(),
                   {.beta1 = 0.9f,
                    .beta2 = settings.beta2,
                    .eps = 1e-8f,
                    .weight_decay = settings.weight_decay},
                   {.grad_clip = settings.grad_clip}) {
    model_.allocate();
    optimizer_.allocate(model_.stream().device());
    loader_.read_weights(model_.stream(), model_.parameters());
    optimizer_.start(model_.stream());
  }

  void expect_logits(double tolerance) {
    std::vector<float> logits(state_.logits.size());
    model_.logits(logits, state_.tokens);
    double worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - state_.logits[i]));
    }
    EXPECT_LT(worst, tolerance);
  }

  void expect_gradients(double tolerance) {
    forward_and_backward(0);
    for (const Parameter& p : model_.parameters().table()) {
      const auto got = testing::read_values(model_.stream(), model_.parameters().gradient(p.name));
      const std::vector<float>& expected = state_.gradients.at(p.name);
      ASSERT_EQ(got.size(), expected.size()) << p.name;
      double difference = 0, norm = 0;
      const auto third = static_cast<std::size_t>(loader_.config().n_embd);
      for (std::size_t i = 0; i < got.size(); ++i) {
        // The gradient of the key bias is rounding noise around zero.
        if (p.name.ends_with("attn.qkv.bias") && i / third == 1) continue;
        difference += std::pow(static_cast<double>(got[i]) - expected[i], 2);
        norm += std::pow(static_cast<double>(expected[i]), 2);
      }
      EXPECT_LT(std::sqrt(difference), tolerance * std::sqrt(norm)) << p.name;
    }
  }

  float recorded_loss() const { return state_.loss; }
  /// The loss before each of the steps.
  std::vector<float> train(std::size_t steps) {
    std::vector<float> losses;
    for (std::size_t step = 0; step < steps; ++step) {
      forward_and_backward(static_cast<std::int64_t>(step));
      optimizer_.step(model_.stream(), model_.step_block());
      losses.push_back(model_.read_step_block().loss);
    }
    return losses;
  }

 private:
  void forward_and_backward(std::int64_t step) {
    model_.begin_step({.lr = kLr,
                       .seed = 1,
                       .step = step,
                       .nominal_tokens = static_cast<double>(state_.tokens.size())});
    model_.forward(state_.tokens, state_.targets);
    model_.backward();
  }

  ModelLoader loader_;
  LlmcDebugState state_;
  Transformer model_;
  AdamW optimizer_;
};

void expect_reproduced(const fs::path& folder, const std::string& name, const Settings& settings,
                       const std::vector<float>& losses, const Tolerance& tolerance) {
  DebugRun run(folder / (name + ".bin"), folder / (name + "_debug_state.bin"), settings);
  run.expect_logits(tolerance.logits);
  run.expect_gradients(tolerance.gradients);
  const std::vector<float> got = run.train(losses.size());
  EXPECT_NEAR(got.front(), run.recorded_loss(), tolerance.loss);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(got[i], losses[i], tolerance.loss) << "step " << i;
  }
}

/// The file of bf16 weights holds the others rounded to nearest.
void expect_rounded(const fs::path& folder, const std::string& name) {
  ModelLoader exact(folder / (name + ".bin")), rounded(folder / (name + "_bf16.bin"));
  EXPECT_EQ(exact.dtype(), DType::kF32);
  EXPECT_EQ(rounded.dtype(), DType::kBF16);
  ASSERT_EQ(exact.config(), rounded.config());
  TransformerOptions options;
  options.micro_batch = 1;
  options.seq_len = 1;
  options.dtype = DType::kBF16;
  options.training = false;
  const Device device = Device::open();
  Transformer a(device, exact.config(), options), b(device, exact.config(), options);
  a.allocate();
  b.allocate();
  exact.read_weights(a.stream(), a.parameters());
  rounded.read_weights(b.stream(), b.parameters());
  for (ParameterSet::Id id = 0; id < a.parameters().table().size(); ++id) {
    EXPECT_TRUE(testing::read_bytes(a.stream(), a.parameters().value(id)) ==
                testing::read_bytes(b.stream(), b.parameters().value(id)))
        << a.parameters().table()[id].name;
  }
}

TEST(LlmcDebugRun, TinyModelIsReproduced) {
  const fs::path folder = fs::path(LLMC_GOLDEN_DIR) / "llmc";
  SafetensorsReader losses(folder / "tiny_losses.safetensors");
  constexpr Tolerance kTolerance{1e-5, 5e-6, 1e-5};
  expect_reproduced(folder, "tiny", kClipped, losses.values<float>("clipped"), kTolerance);
  expect_reproduced(folder, "tiny", kDecayed, losses.values<float>("decayed"), kTolerance);
  expect_rounded(folder, "tiny");
}

class StarterPack : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("LLMC_STARTER_PACK");
    if (folder == nullptr || *folder == '\0') {
      GTEST_SKIP() << "LLMC_STARTER_PACK is not set: it names a folder with llm.c's starter files, "
                      "gpt2_124M.bin, gpt2_124M_bf16.bin, gpt2_124M_debug_state.bin and "
                      "gpt2_tokenizer.bin";
    }
    folder_ = folder;
  }

  fs::path folder_;
};

// Against the losses that llm.c's tests expect, and PyTorch's logits and gradients in fp32.
constexpr Tolerance kStarterTolerance{1e-2, 1e-4, 1e-2};

TEST_F(StarterPack, ClippedLossesAreReproduced) {
  expect_reproduced(folder_, "gpt2_124M", kClipped,
                    {5.270009f, 4.060681f, 3.320085f, 2.717550f, 2.181066f, 1.653923f, 1.168050f,
                     0.736873f, 0.401021f, 0.187493f},
                    kStarterTolerance);
}

TEST_F(StarterPack, DecayedLossesAreReproduced) {
  expect_reproduced(folder_, "gpt2_124M", kDecayed,
                    {5.270007f, 4.059707f, 3.375123f, 2.800783f, 2.315382f, 1.849029f, 1.394656f,
                     0.999147f, 0.624080f, 0.376511f},
                    kStarterTolerance);
}

TEST_F(StarterPack, LowPrecisionIsTheOtherRounded) {
  expect_rounded(folder_, "gpt2_124M");
}

TEST_F(StarterPack, TokenizerEncodes) {
  const auto tokenizer = load_tokenizer(folder_ / "gpt2_tokenizer.bin");
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->end_of_text(), 50256);
  EXPECT_EQ(tokenizer->encode("Hello world"), (std::vector<std::int32_t>{15496, 995}));
}

}  // namespace
}  // namespace llmc
