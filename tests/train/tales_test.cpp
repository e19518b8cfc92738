// Learning, proved: the loss of a tiny model on text whose entropy is known exactly.

#include <gtest/gtest.h>

#include <cmath>

#include "llmc/data/corpus.h"
#include "llmc/optim/adamw.h"
#include "llmc/train/trainer.h"

namespace llmc {
namespace {

// Loss over entropy on tales that training has not seen: 1 is perfect, less is impossible.
double loss_over_entropy(Transformer& model, TaleSource& source, int batches) {
  double loss_bits = 0, entropy_bits = 0;
  Batch batch;
  for (int i = 0; i < batches; ++i) {
    source.next(batch);
    loss_bits += model.evaluate(batch.inputs, batch.targets).loss_sum / std::log(2.0);
    entropy_bits += source.bits();
  }
  return loss_bits / entropy_bits;
}

TEST(Tales, ATinyModelComesWithinFivePercentOfTheEntropy) {
  constexpr std::int64_t kBatch = 4, kTokens = 216;
  TrainConfig config;
  config.max_steps = 2600;
  config.lr = 4e-3;
  config.final_lr_fraction = 0.02;
  config.warmup_steps = 50;
  config.val_every = config.sample_every = config.checkpoint_every = 0;

  const Device device = Device::open({1, "auto"});
  TransformerOptions options;
  options.micro_batch = kBatch;
  options.seq_len = kTokens;
  Transformer model(device, ModelConfig::gpt2(2, 4, 64, kTokens, 257), options);
  AdamW optimizer(model.parameters(), {0.9f, 0.98f, 1e-8f, 0.01f}, {1.0f, 0.0f, 0.0f});
  model.allocate();
  optimizer.allocate(device);
  model.init(1);
  optimizer.start(model.stream());

  TaleSource source(kBatch, kTokens, 1), unseen(kBatch, kTokens, 2);
  EXPECT_GT(loss_over_entropy(model, unseen, 5), 10.0);
  Trainer(config, model, source, optimizer).run();
  unseen.reset();
  const double ratio = loss_over_entropy(model, unseen, 200);
  RecordProperty("loss_over_entropy", std::to_string(ratio));
  EXPECT_LT(ratio, 1.05);
  EXPECT_GT(ratio, 0.99);
}

}  // namespace
}  // namespace llmc
