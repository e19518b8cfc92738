// Another optimizer: SGD with momentum on the public Optimizer interface. The base class brings the
// global norm, clipping, the guard against bad steps, and state that checkpoints save and restore.

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

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
  Sgd(const llmc::Device& device, const llmc::ParameterSet& parameters, float momentum,
      float weight_decay, const llmc::GuardOptions& guard)
      : Optimizer(parameters, guard),
        momentum_(momentum),
        weight_decay_(weight_decay),
        velocity_(declare_state("velocity")),
        decisions_(device, sizeof(llmc::StepBlock)) {}

  /// Checkpoints record the name: state is only restored into the optimizer that wrote it.
  std::string_view name() const override { return "sgd"; }

 private:
  // Tensors and the block may be on a GPU, so this plain loop works on copies. On the CPU backend
  // it could use the memory itself (Tensor::data); for GPUs, a fast one would be a kernel of its
  // own on stream.native() that reads the block there.
  void update(llmc::Stream& stream, std::span<const llmc::UpdateRange> part,
              const llmc::StepBlock* device_block) override {
    decisions_.start(stream, device_block);
    const auto block = *static_cast<const llmc::StepBlock*>(decisions_.wait());
    if (block.skip != llmc::kNoSkip) return;  // the loss or the norm was not finite, or an outlier
    // A range is a stretch of parameters in one piece of memory that share a group, so that the
    // inner loop need not know the model.
    for (const llmc::UpdateRange& range : part) {
      std::vector<float> value = to_host(stream, values(range));
      std::vector<float> velocity = to_host(stream, state(velocity_, range));
      const std::vector<float> gradient = to_host(stream, gradients(range));
      const float decay = range.group == llmc::OptimizerGroup::kDecay ? weight_decay_ : 0.0f;
      for (std::size_t i = 0; i < value.size(); ++i) {
        // grad_scale turns the gradient into that of the mean loss and clips it.
        const float g = gradient[i] * block.grad_scale + decay * value[i];
        velocity[i] = momentum_ * velocity[i] + g;
        value[i] -= block.lr * (g + momentum_ * velocity[i]);
      }
      copy_from_host(stream, values(range), value.data());
      copy_from_host(stream, state(velocity_, range), velocity.data());
    }
  }

  static std::vector<float> to_host(llmc::Stream& stream, const llmc::Tensor& tensor) {
    std::vector<float> elements(static_cast<std::size_t>(tensor.numel()));
    copy_to_host(stream, elements.data(), tensor);
    return elements;
  }

  float momentum_;
  float weight_decay_;
  StateId velocity_;
  llmc::Readback decisions_;
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
  Sgd optimizer(device, model.parameters(), /*momentum=*/0.9f, /*weight_decay=*/1e-4f,
                {.grad_clip = 1.0f});
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
