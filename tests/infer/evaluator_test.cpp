#include "llmc/infer/evaluator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/token_file.h"
#include "nn/tiny_model.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

const ModelConfig kConfig = ModelConfig::gpt2(2, 3, 39, 16, 97);
constexpr std::int64_t kT = 8;

Transformer tiny(std::int64_t micro_batch) {
  TransformerOptions options;
  options.micro_batch = micro_batch;
  options.seq_len = kT;
  return testing::make_model(kConfig, options);
}

/// Batches held in memory; without end unless `batches` says otherwise.
class MemorySource : public BatchSource {
 public:
  MemorySource(std::int64_t B, std::int64_t batches) : B_(B), batches_(batches) {}
  std::int64_t B() const override { return B_; }
  std::int64_t T() const override { return kT; }
  void next(Batch& batch) override {
    const auto ids = batch_at(position_++);
    batch.inputs = ids.tokens;
    batch.targets = ids.targets;
  }
  testing::TokenBatch batch_at(std::int64_t i) const {
    return testing::random_batch(97, B_ * kT, static_cast<std::uint32_t>(i + 1), 5);
  }
  SourceState state() const override { return {{"position", position_}}; }
  void restore(const SourceState& state) override { position_ = state.at("position"); }
  void reset() override { position_ = 0; }
  std::int64_t epoch() const override { return batches_ > 0 ? position_ / batches_ : 0; }
  std::int64_t batches_per_epoch() const override { return batches_; }
  std::int64_t tokens_per_epoch() const override { return batches_ * B_ * kT; }

 private:
  std::int64_t B_, batches_, position_ = 0;
};

TEST(Evaluator, AddsUpWhatTheModelSays) {
  Transformer model = tiny(3);
  MemorySource source(2, 4);
  double loss_sum = 0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto batch = source.batch_at(i);
    std::vector<float> losses(batch.tokens.size());
    model.evaluate(batch.tokens, batch.targets, 2, kT, losses);
    for (std::size_t j = 0; j < losses.size(); ++j) {
      loss_sum += losses[j];
      counted += batch.targets[j] >= 0;
    }
  }
  Evaluator evaluator(model);
  Batch skipped;
  source.next(skipped);
  for (const std::int64_t max_tokens : {std::int64_t{0}, counted, std::int64_t{1000}}) {
    const Evaluation result = evaluator.run(source, max_tokens);
    EXPECT_EQ(result.counted_tokens, counted);
    EXPECT_NEAR(result.loss_sum, loss_sum, 1e-6 * loss_sum);
  }
  const Evaluation some = evaluator.run(source, 30);
  EXPECT_GE(some.counted_tokens, 30);
  EXPECT_LT(some.counted_tokens, 30 + kT);
  EXPECT_EQ(source.state().at("position"), 3);
}

TEST(Evaluator, FilesCountEveryTokenOnceWhateverTheMicroBatch) {
  const testing::TempFolder folder;
  const auto ids = testing::random_batch(97, 117, 3).tokens;
  const auto short_ids = testing::random_batch(97, 4, 5).tokens;
  for (const auto& [name, tokens] : {std::pair{"a.bin", ids}, std::pair{"b.bin", short_ids}}) {
    TokenFileWriter writer(folder / name, TokenFormat::kU16);
    writer.write(tokens);
    writer.commit();
  }
  const std::vector<std::filesystem::path> files = {folder / "a.bin", folder / "b.bin"};
  Transformer one = tiny(1), five = tiny(5);
  const Evaluation expected = Evaluator(one).run(files);
  EXPECT_EQ(expected.counted_tokens, 116 + 3);
  const Evaluation got = Evaluator(five).run(files);
  EXPECT_EQ(got.counted_tokens, expected.counted_tokens);
  EXPECT_NEAR(got.loss_sum, expected.loss_sum, 1e-6 * expected.loss_sum);
  // Another row length is another question.
  EXPECT_GT(std::abs(Evaluator(five).run(files, 3).loss_sum - expected.loss_sum), 1e-3);
}

// The first tokens, whatever the micro-batch: those of `a`, then those of `b`, to the end of a row.
TEST(Evaluator, SomeTokensAreTheSameWhateverTheMicroBatch) {
  const testing::TempFolder folder;
  std::vector<std::filesystem::path> files;
  for (const auto& [name, count] : {std::pair{"a.bin", 61}, {"b.bin", 90}}) {
    TokenFileWriter writer(folder / name, TokenFormat::kU16);
    writer.write(testing::random_batch(97, count, static_cast<std::uint32_t>(count)).tokens);
    writer.commit();
    files.push_back(folder / name);
  }
  for (const std::int64_t max_tokens : {1, 8, 9, 59, 60, 61, 100, 149, 1000}) {
    Evaluation expected;
    for (const std::int64_t B : {1, 2, 3, 5, 20}) {
      Transformer model = tiny(B);
      DataLoaderOptions options;
      options.B = B;
      options.T = kT;
      options.tail = Tail::kPad;
      DataLoader loader(files, options);
      const Evaluation got = Evaluator(model).run(loader, max_tokens);
      if (B == 1) expected = got;
      EXPECT_EQ(got.counted_tokens, expected.counted_tokens) << max_tokens << " B " << B;
      EXPECT_NEAR(got.loss_sum, expected.loss_sum, 1e-6 * expected.loss_sum) << max_tokens;
    }
    EXPECT_GE(expected.counted_tokens, std::min<std::int64_t>(max_tokens, 60 + 89));
    EXPECT_LT(expected.counted_tokens, max_tokens + kT);
  }
}

TEST(Evaluator, TokensInMemoryCountAsThoseOfAFile) {
  const testing::TempFolder folder;
  for (const std::int64_t count : {2, 9, 10, 117}) {
    const auto ids = testing::random_batch(97, count, 3).tokens;
    TokenFileWriter writer(folder / "a.bin", TokenFormat::kU16);
    writer.write(ids);
    writer.commit();
    Transformer model = tiny(3);
    Evaluator evaluator(model);
    for (const std::int64_t T : {0, 3}) {
      const Evaluation expected = evaluator.run({folder / "a.bin"}, T);
      const Evaluation got = evaluator.run(ids, T);
      EXPECT_EQ(got.counted_tokens, count - 1);
      EXPECT_NEAR(got.loss_sum, expected.loss_sum, 1e-6 * expected.loss_sum);
    }
  }
  Transformer model = tiny(1);
  EXPECT_EQ(Evaluator(model).run(std::vector<std::int32_t>{5}).counted_tokens, 0);
  EXPECT_EQ(Evaluator(model).run(std::vector<std::int32_t>()).counted_tokens, 0);
  EXPECT_THROW(Evaluator(model).run(std::vector<std::int32_t>{5, 97}), Error);
  EXPECT_THROW(Evaluator(model).run(std::vector<std::int32_t>{5, 6}, kT + 1), Error);
}

TEST(Evaluator, LeavesTrainingAlone) {
  Transformer model = tiny(2);
  const auto batch = testing::random_batch(97, 2 * kT, 1);
  model.begin_step({.lr = 0, .seed = 0, .step = 0, .nominal_tokens = 4 * kT}, 2);
  model.forward(batch.tokens, batch.targets);
  model.backward();
  const auto gradients = testing::all_gradients(model);
  const double loss_sum = model.read_step_block().loss_sum;
  MemorySource source(2, 2);
  Evaluator(model).run(source);
  EXPECT_EQ(testing::all_gradients(model), gradients);
  EXPECT_EQ(model.read_step_block().loss_sum, loss_sum);
  model.forward(batch.tokens, batch.targets);
  model.backward();
  EXPECT_DOUBLE_EQ(model.read_step_block().loss_sum, 2 * loss_sum);
}

TEST(Evaluator, Measures) {
  const Evaluation result{.loss_sum = 30.0, .counted_tokens = 20};
  EXPECT_DOUBLE_EQ(result.mean_loss(), 1.5);
  EXPECT_DOUBLE_EQ(result.perplexity(), std::exp(1.5));
  EXPECT_DOUBLE_EQ(result.bits_per_byte(4.0), 1.5 / std::log(2.0) / 4.0);
  EXPECT_TRUE(std::isnan(Evaluation().mean_loss()));
}

TEST(Evaluator, RefusesWhatItCannotRun) {
  Transformer model = tiny(2);
  Evaluator evaluator(model);
  MemorySource endless(2, 0), wide(3, 1);
  expect_error(ErrorKind::kInput, "max_tokens", [&] { evaluator.run(endless); });
  expect_error(ErrorKind::kInput, "max_tokens", [&] { evaluator.run(endless, -1); });
  EXPECT_GT(evaluator.run(endless, 2).counted_tokens, 0);
  expect_error(ErrorKind::kInput, "micro_batch", [&] { evaluator.run(wide); });
  const testing::TempFolder folder;
  TokenFileWriter writer(folder / "a.bin", TokenFormat::kU16);
  writer.write(std::vector<std::int32_t>(50, 97));
  writer.commit();
  const std::vector<std::filesystem::path> files = {folder / "a.bin"};
  EXPECT_THROW(evaluator.run(files), Error);
  EXPECT_THROW(evaluator.run(files, 9), Error);
}

}  // namespace
}  // namespace llmc
