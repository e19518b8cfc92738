// The training loop written by hand: gradient accumulation, a learning-rate schedule, AdamW,
// validation, and checkpoints from which a run goes on to the bit.

#include <cstdio>
#include <filesystem>

#include "llmc/data/corpus.h"
#include "llmc/infer/evaluator.h"
#include "llmc/io/checkpoint.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"
#include "llmc/optim/schedule.h"
#include "temporary_folder.h"

namespace {

constexpr int kMicroSteps = 2;  // micro-batches whose gradients add up to those of one step
constexpr std::int64_t kMicroBatch = 2;
constexpr std::int64_t kMaxSteps = 120;
constexpr std::int64_t kValEvery = 30;
constexpr std::int64_t kVocabSize = 257;  // the bytes and end-of-text

/// What is left to compare when a training is over.
struct Result {
  float first_loss;  ///< of the first step done here
  float last_loss;
  double val_loss;
};

/// Trains up to step `last` in the folder `run`, from the newest checkpoint there, else from the
/// start, and leaves a checkpoint.
Result train(const std::filesystem::path& run, std::int64_t last) {
  const llmc::Device device = llmc::Device::open();
  const std::int64_t T = llmc::longest_tale() + 1;

  // The model's constructor plans its memory; `allocate` is the only call that allocates it.
  const llmc::ModelConfig config = llmc::ModelConfig::gpt2(2, 2, 48, T, kVocabSize);
  llmc::Transformer model(device, config, {.micro_batch = kMicroBatch});
  model.allocate();
  model.init(/*seed=*/42);

  // The optimizer owns its state, the global norm, and the guard against bad steps.
  llmc::AdamW optimizer(model.parameters(), {.beta2 = 0.99f, .weight_decay = 0.1f},
                        {.grad_clip = 1.0f});
  optimizer.allocate(device);
  optimizer.start(model.stream());
  const llmc::Schedule schedule({.kind = llmc::ScheduleKind::kCosine,
                                 .lr = 8e-3,
                                 .final_lr_fraction = 0.1,
                                 .warmup_steps = 10,
                                 .max_steps = kMaxSteps});

  llmc::TaleSource train_data(kMicroBatch, T, /*seed=*/1);
  llmc::TaleSource val_data(kMicroBatch, T, /*seed=*/2);
  llmc::Evaluator evaluator(model);
  llmc::CheckpointWriter checkpoints(run, model.parameters(), optimizer, {.keep = 2});

  std::int64_t first = 0;
  if (const auto newest = llmc::latest_checkpoint(run)) {
    llmc::CheckpointReader checkpoint(*newest);
    checkpoint.read_all(model.stream(), model.parameters(), optimizer, model.step_block());
    train_data.restore(checkpoint.info().loader);
    first = checkpoint.info().step;
    std::printf("goes on from %s\n", newest->filename().c_str());
  }

  Result result{};
  llmc::Batch batch;
  for (std::int64_t step = first; step < last; ++step) {
    // Everything that changes per step goes to the device at once. The gradients of all
    // micro-batches together are those of (sum of losses) / nominal_tokens.
    model.begin_step({.lr = schedule.lr(step),
                      .seed = 42,
                      .step = step,
                      .nominal_tokens = static_cast<double>(kMicroSteps * kMicroBatch * T)},
                     kMicroSteps);
    for (int micro_step = 0; micro_step < kMicroSteps; ++micro_step) {
      train_data.next(batch);
      model.forward(batch.inputs, batch.targets);
      model.backward();
    }
    optimizer.step(model.stream(), model.step_block());

    // Reading the block waits for the step. A loop that must not wait reads it one step later.
    const llmc::StepBlock done = model.read_step_block();
    if (step == first) result.first_loss = done.loss;
    result.last_loss = done.loss;
    if ((step + 1) % kValEvery == 0) {
      result.val_loss = evaluator.run(val_data, /*max_batches=*/4).mean_loss();
      std::printf("step %3d  loss %.4f  norm %.3f  lr %.2e  validation %.4f\n",
                  static_cast<int>(step + 1), done.loss, done.grad_norm, done.lr, result.val_loss);
    }
  }

  llmc::CheckpointInfo info;
  info.step = last;
  info.model = config;
  info.loader = train_data.state();
  info.updates = model.read_step_block().updates;
  checkpoints.save(model.stream(), info);  // copies, and writes in a thread
  checkpoints.wait();
  return result;
}

}  // namespace

int main() {
  const TemporaryFolder folder;
  const Result straight = train(folder / "straight", kMaxSteps);

  train(folder / "interrupted", kMaxSteps / 2);
  const Result resumed = train(folder / "interrupted", kMaxSteps);

  const bool same =
      straight.last_loss == resumed.last_loss && straight.val_loss == resumed.val_loss;
  std::printf("the interrupted run ended with %s losses\n", same ? "the same" : "other");
  return same && straight.last_loss < 0.6f * straight.first_loss ? 0 : 1;
}
