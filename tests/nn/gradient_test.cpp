// Gradients against central differences.

#include <gtest/gtest.h>

#include <vector>

#include "nn/tiny_model.h"

namespace llmc {
namespace {

// Step of the differences. With the five-point formula the truncation error is of order h⁴; the
// rounding error is that of a sum of 40 losses, about 1e-6, over h.
constexpr float kStep = 0.02f;
constexpr double kAbsolute = 5e-4;
constexpr double kRelative = 5e-3;

TEST(TransformerGradient, MatchesCentralDifferences) {
  const ModelConfig config = ModelConfig::gpt2(2, 2, 14, 12, 37);
  TransformerOptions options;
  options.micro_batch = 4;
  options.seq_len = 10;
  Transformer model = testing::make_model(config, options);
  const testing::TokenBatch batch = testing::random_batch(37, 40, 3, 9);
  // nominal_tokens of 1: gradients of the sum of losses.
  model.begin_step({.lr = 0, .seed = 0, .step = 0, .nominal_tokens = 1.0});
  model.forward(batch.tokens, batch.targets);
  model.backward();

  Mt19937 rng(17);
  for (const Parameter& p : model.parameters().table()) {
    const Tensor value = model.parameters().value(p.name);
    const auto gradient = testing::read_values(model.stream(), model.parameters().gradient(p.name));
    const auto original = testing::read_values(model.stream(), value);
    const auto loss_at = [&](std::size_t i, float step) {
      auto moved = original;
      moved[i] += step;
      testing::write_values(model.stream(), value, moved);
      return model.evaluate(batch.tokens, batch.targets).loss_sum;
    };
    // Some anywhere, and the largest.
    std::vector<std::size_t> places;
    for (int i = 0; i < 5; ++i) {
      const auto drawn = p.init.rows > 0 ? static_cast<std::size_t>(p.init.rows * p.shape.dim(1))
                                         : gradient.size();
      places.push_back(rng.next_u32() % drawn);
    }
    places.push_back(static_cast<std::size_t>(
        std::max_element(gradient.begin(), gradient.end(),
                         [](float a, float b) { return std::abs(a) < std::abs(b); }) -
        gradient.begin()));
    for (const std::size_t i : places) {
      const double near = loss_at(i, kStep) - loss_at(i, -kStep);
      const double far = loss_at(i, 2 * kStep) - loss_at(i, -2 * kStep);
      const double difference = (8 * near - far) / (12 * static_cast<double>(kStep));
      EXPECT_NEAR(gradient[i], difference, kAbsolute + kRelative * std::abs(difference))
          << p.name << ' ' << i;
    }
    testing::write_values(model.stream(), value, original);
  }
}

}  // namespace
}  // namespace llmc
