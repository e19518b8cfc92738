// A custom EventSink: it draws the loss as bars while the Trainer runs, and ends the run as soon as
// the model is good enough.

#include <algorithm>
#include <cstdio>
#include <string>
#include <variant>

#include "llmc/data/corpus.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"
#include "llmc/train/trainer.h"

namespace {

/// One line per validation, with a bar as long as the loss is high. Stops the run once the
/// validation loss is below `target` nats per token.
class BarChart : public llmc::EventSink {
 public:
  explicit BarChart(double target) : target_(target) {}

  // Every kind of event arrives here; a sink takes what it wants and ignores the rest.
  llmc::SinkAction on_event(const llmc::Event& event) override {
    if (const auto* start = std::get_if<llmc::StartEvent>(&event)) {
      std::printf("%d parameters on %s\n", static_cast<int>(start->parameters),
                  start->device.c_str());
    } else if (const auto* step = std::get_if<llmc::StepEvent>(&event)) {
      ++steps_;
      train_loss_ = step->loss;
    } else if (const auto* val = std::get_if<llmc::ValEvent>(&event)) {
      ++validations_;
      const auto length = static_cast<std::size_t>(std::clamp(val->loss * 10, 0.0, 70.0));
      std::printf("%4d %s %.3f\n", static_cast<int>(val->step), std::string(length, '#').c_str(),
                  val->loss);
      if (val->loss < target_) return llmc::SinkAction::kStop;
    } else if (const auto* stop = std::get_if<llmc::StopEvent>(&event)) {
      std::printf("stopped after %d steps\n", static_cast<int>(stop->step));
    }
    return llmc::SinkAction::kContinue;
  }

  int steps() const { return steps_; }
  int validations() const { return validations_; }
  float train_loss() const { return train_loss_; }

 private:
  double target_;
  int steps_ = 0;
  int validations_ = 0;
  float train_loss_ = 0;
};

}  // namespace

int main() {
  constexpr std::int64_t kMicroBatch = 4;
  const std::int64_t T = llmc::longest_tale() + 1;

  // The groups step, optimizer and run of the configuration say what the Trainer does; the rest is
  // what it is given.
  llmc::TrainConfig config;
  config.max_steps = 1000;
  config.lr = 8e-3;
  config.schedule = "constant";
  config.warmup_steps = 20;
  config.val_every = 20;
  config.val_tokens = 4 * kMicroBatch * T;
  config.sample_every = 0;
  config.checkpoint_every = 0;

  const llmc::Device device = llmc::Device::open();
  llmc::Transformer model(device, llmc::ModelConfig::gpt2(1, 2, 32, T, /*vocab_size=*/257),
                          {.micro_batch = kMicroBatch});
  model.allocate();
  model.init(42);
  llmc::AdamW optimizer(model.parameters(), {.beta2 = 0.99f}, {.grad_clip = 1.0f});
  optimizer.allocate(device);
  optimizer.start(model.stream());
  llmc::TaleSource train_data(kMicroBatch, T, /*seed=*/1);
  llmc::TaleSource val_data(kMicroBatch, T, /*seed=*/2);

  constexpr double kTarget = 2.2;
  BarChart chart(kTarget);
  llmc::Trainer trainer(config, model, train_data, optimizer);
  trainer.validate_on(val_data);
  trainer.add_sink(chart);
  const llmc::StopEvent stop = trainer.run();

  const bool stopped_by_sink = stop.reason == llmc::StopReason::kSink && stop.val_loss < kTarget;
  const bool saw_all = chart.steps() == stop.step && chart.validations() == 1 + stop.step / 20;
  return stopped_by_sink && saw_all && chart.train_loss() < 3.0f ? 0 : 1;
}
