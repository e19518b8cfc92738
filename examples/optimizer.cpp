// Another optimizer: SGD with momentum on the public Optimizer interface. The base class brings the
// global norm, clipping, the guard against bad steps, and state that checkpoints save and restore.

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "llmc/data/corpus.h"
#include "llmc/io/checkpoint.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/optimizer.h"
#include "temporary_folder.h"

namespace {

/// SGD with Nesterov's momentum (Sutskever et al., 2013): with g = gradient + weight_decay · θ,
/// u ← momentum · u + g, then θ ← θ − lr · (g + momentum · u).
class Sgd : public llmc::Optimizer {
 public:
  Sgd(const llmc::ParameterSet& parameters, float momentum, float weight_decay,
      const llmc::GuardOptions& guard)
      : Optimizer(parameters, guard),
        momentum_(momentum),
        weight_decay_(weight_decay),
        velocity_(declare_state("velocity")) {}

  /// Checkpoints record the name: state is only restored into the optimizer that wrote it.
  std::string_view name() const override { return "sgd"; }

 private:
  // A range is a stretch of parameters in one piece of memory that share a group, so that the inner
  // loop need not know the model. On the CPU backend tensors can be read and written directly.
  void update(llmc::Stream&, const llmc::StepBlock* block) override {
    if (block->skip != llmc::kNoSkip) return;  // the loss or the norm was not finite, or an outlier
    for (const llmc::UpdateRange& range : ranges()) {
      float* value = values(range).data<float>();
      float* velocity = state(velocity_, range).data<float>();
      const float* gradient = gradients(range).data<float>();
      const float decay = range.group == llmc::OptimizerGroup::kDecay ? weight_decay_ : 0.0f;
      for (std::int64_t i = 0; i < range.count; ++i) {
        // grad_scale turns the gradient into that of the mean loss and clips it.
        const float g = gradient[i] * block->grad_scale + decay * value[i];
        velocity[i] = momentum_ * velocity[i] + g;
        value[i] -= block->lr * (g + momentum_ * velocity[i]);
      }
    }
  }

  float momentum_;
  float weight_decay_;
  StateId velocity_;
};

/// Trains to step `last`, from the newest checkpoint in `run` if there is one, and leaves a
/// checkpoint. Returns the loss of the last step.
float train(const std::filesystem::path& run, std::int64_t last) {
  constexpr std::int64_t kMicroBatch = 4;
  const std::int64_t T = llmc::longest_tale() + 1;
  const llmc::Device device = llmc::Device::open();
  const auto config = llmc::ModelConfig::gpt2(1, 2, 32, T, /*vocab_size=*/257);
  llmc::Transformer model(device, config, {.micro_batch = kMicroBatch});
  model.allocate();
  model.init(42);
  Sgd optimizer(model.parameters(), /*momentum=*/0.9f, /*weight_decay=*/1e-4f, {.grad_clip = 1.0f});
  optimizer.allocate(device);
  optimizer.start(model.stream());
  llmc::TaleSource source(kMicroBatch, T, /*seed=*/1);

  std::int64_t step = 0;
  if (const auto newest = llmc::latest_checkpoint(run)) {
    llmc::CheckpointReader checkpoint(*newest);
    checkpoint.read_all(model.stream(), model.parameters(), optimizer, model.step_block());
    source.restore(checkpoint.info().loader);
    step = checkpoint.info().step;
  }
  llmc::Batch batch;
  for (; step < last; ++step) {
    source.next(batch);
    model.begin_step({.lr = 0.2f,
                      .seed = 42,
                      .step = step,
                      .nominal_tokens = static_cast<double>(kMicroBatch * T)});
    model.forward(batch.inputs, batch.targets);
    model.backward();
    optimizer.step(model.stream(), model.step_block());
  }

  llmc::CheckpointInfo info;
  info.step = last;
  info.model = config;
  info.loader = source.state();
  info.updates = model.read_step_block().updates;
  llmc::CheckpointWriter writer(run, model.parameters(), optimizer, {});
  writer.save(model.stream(), info);
  writer.wait();
  return model.read_step_block().loss;
}

}  // namespace

int main() {
  const TemporaryFolder folder;
  const float straight = train(folder / "straight", 80);
  const float halfway = train(folder / "resumed", 40);
  const float resumed = train(folder / "resumed", 80);
  std::printf("loss after 40 steps %.6f, after 80 steps %.6f, resumed at 40 %.6f\n", halfway,
              straight, resumed);
  const float untrained = std::log(257.0f);
  return straight == resumed && straight < 0.6f * untrained && straight < halfway ? 0 : 1;
}
