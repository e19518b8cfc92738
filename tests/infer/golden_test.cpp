// Greedy texts and answers against PyTorch's in fp64 (python_ref/write_inference_golden.py).

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "llmc/infer/evaluator.h"
#include "llmc/infer/sampler.h"
#include "llmc/io/safetensors.h"
#include "nn/tiny_model.h"

namespace llmc {
namespace {

using Ids = std::vector<std::int32_t>;

std::filesystem::path golden_file(const char* name) {
  return std::filesystem::path(LLMC_GOLDEN_DIR) / name;
}

/// The model of tiny_gpt2_a.
Transformer golden_model() {
  SafetensorsReader file(golden_file("tiny_gpt2_a.safetensors"));
  const auto number = [&](const char* key) { return std::stoll(file.metadata().at(key)); };
  const auto config = ModelConfig::gpt2(number("n_layer"), number("n_head"), number("n_embd"),
                                        number("block_size"), number("vocab_size"));
  Transformer model(Device::open({.threads = 2}), config, {.micro_batch = 3, .training = false});
  model.allocate();
  for (const Parameter& p : model.parameters().table()) {
    file.read(model.stream(), model.parameters().value(p.name), "param." + p.name);
  }
  return model;
}

/// Cuts flattened lists into their pieces.
class Pieces {
 public:
  explicit Pieces(Ids all) : all_(std::move(all)) {}
  Ids next(std::int32_t length) {
    const auto begin = all_.begin() + next_;
    next_ += length;
    return {begin, all_.begin() + next_};
  }

 private:
  Ids all_;
  std::ptrdiff_t next_ = 0;
};

TEST(InferenceGolden, GreedyTextsPastTheContext) {
  SafetensorsReader file(golden_file("tiny_inference.safetensors"));
  Pieces flat(file.values<std::int32_t>("prompts"));
  std::vector<Sampler::Tokens> prompts;
  for (const std::int32_t length : file.values<std::int32_t>("prompt_lengths")) {
    prompts.push_back(flat.next(length));
  }
  const Ids expected = file.values<std::int32_t>("greedy");
  const auto count = static_cast<std::int64_t>(expected.size() / prompts.size());
  Transformer model = golden_model();
  Sampler sampler(model, {.temperature = 0.0f}, std::ssize(prompts));
  Ids got;
  for (const auto& tokens : sampler.generate_batch(prompts, count)) {
    got.insert(got.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(got, expected);
}

TEST(InferenceGolden, Choices) {
  SafetensorsReader file(golden_file("tiny_inference.safetensors"));
  Pieces contexts(file.values<std::int32_t>("contexts"));
  Pieces endings(file.values<std::int32_t>("endings"));
  Pieces lengths(file.values<std::int32_t>("ending_lengths"));
  Pieces characters(file.values<std::int32_t>("ending_characters"));
  const Ids counts = file.values<std::int32_t>("ending_counts");
  std::vector<ChoiceExample> examples;
  for (const std::int32_t length : file.values<std::int32_t>("context_lengths")) {
    ChoiceExample example{contexts.next(length), {}, 0};
    const std::int32_t count = counts[examples.size()];
    const Ids n = lengths.next(count), c = characters.next(count);
    for (std::size_t i = 0; i < n.size(); ++i) {
      example.endings.push_back({endings.next(n[i]), c[i]});
    }
    examples.push_back(std::move(example));
  }
  Transformer model = golden_model();
  Ids got;
  for (const ChoicePrediction& p : Evaluator(model).choose(examples)) {
    got.insert(got.end(), {p.by_sum, p.by_character, p.by_token});
  }
  EXPECT_EQ(got, file.values<std::int32_t>("predictions"));
}

}  // namespace
}  // namespace llmc
