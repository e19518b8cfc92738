#include "llmc/train/trainer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>
#include <variant>

#include "llmc/core/error.h"
#include "llmc/core/log.h"
#include "support/temp_folder.h"
#include "support/tensor_values.h"
#include "train/tiny_run.h"

namespace llmc {
namespace {

using testing::Recorder;
using testing::TempFolder;
using testing::tiny_config;
using testing::TinyRun;

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_tokens(folder_ / "train.bin", 293, 61, 5); }

  // The events of a run of `config`, from a checkpoint if one is given.
  Recorder run(const TrainConfig& config, const std::filesystem::path& checkpoint = {},
               DType dtype = DType::kF32) {
    TinyRun tiny(config, folder_ / "train.bin", dtype);
    Trainer trainer(config, tiny.model, tiny.source, tiny.optimizer);
    Recorder recorder;
    trainer.add_sink(recorder);
    trainer.save_to(folder_ / "run");
    if (!checkpoint.empty()) {
      CheckpointReader reader(checkpoint);
      trainer.resume(reader);
    }
    trainer.run();
    return recorder;
  }

  TempFolder folder_;
};

TEST_F(TrainerTest, ReportsEveryStepOnce) {
  TrainConfig config = tiny_config();
  config.max_steps = 7;
  const Recorder recorder = run(config);
  EXPECT_EQ(recorder.steps<StepEvent>(), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  ASSERT_EQ(recorder.all<StartEvent>().size(), 1u);
  const StartEvent start = recorder.all<StartEvent>()[0];
  EXPECT_EQ(start.micro_steps, 2);
  EXPECT_EQ(start.tokens_per_step, 32);
  EXPECT_EQ(start.total_steps, 7);
  ASSERT_EQ(recorder.all<StopEvent>().size(), 1u);
  EXPECT_EQ(recorder.all<StopEvent>()[0].reason, StopReason::kFinished);
  EXPECT_EQ(recorder.all<StepEvent>()[6].tokens, 7 * 32);
  EXPECT_TRUE(std::holds_alternative<StopEvent>(recorder.events.back()));
}

TEST_F(TrainerTest, LearnsAndFollowsTheSchedule) {
  TrainConfig config = tiny_config();
  config.max_steps = 60;
  const auto steps = run(config).all<StepEvent>();
  EXPECT_LT(steps.back().loss, steps.front().loss - 0.5f);
  EXPECT_FLOAT_EQ(steps[0].lr, 1e-3f);
  EXPECT_FLOAT_EQ(steps[2].lr, 3e-3f);
  EXPECT_LT(steps.back().lr, 4e-4f);
}

TEST_F(TrainerTest, EqualsTheLoopWrittenByHand) {
  const TrainConfig config = tiny_config();
  const std::vector<float> losses = run(config).losses();
  TinyRun tiny(config, folder_ / "train.bin");
  ScheduleOptions schedule_options;
  schedule_options.lr = config.lr;
  schedule_options.warmup_steps = config.warmup_steps;
  schedule_options.max_steps = config.max_steps;
  const Schedule schedule(schedule_options);
  Batch batch;
  for (std::int64_t step = 0; step < config.max_steps; ++step) {
    tiny.model.begin_step({schedule.lr(step), 42, step, 32.0}, 2);
    for (int micro = 0; micro < 2; ++micro) {
      tiny.source.next(batch);
      tiny.model.forward(batch.inputs, batch.targets);
      tiny.model.backward();
    }
    tiny.optimizer.step(tiny.model.stream(), tiny.model.step_block());
    EXPECT_EQ(tiny.model.read_step_block().loss, losses[static_cast<std::size_t>(step)]) << step;
  }
}

// An epoch has 18 micro-batches of 16 tokens, so 20 steps of 2 go over two epochs.
TEST_F(TrainerTest, ResumeRepeatsTheRunToTheBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::filesystem::remove_all(folder_ / "run");
    TrainConfig config = tiny_config();
    const std::vector<float> whole = run(config, {}, dtype).losses();
    for (const std::int64_t stop : {1, 9, 10, 19}) {
      std::filesystem::remove_all(folder_ / "run");
      // The schedule knows the whole run, so a flag stops the first part, not max_steps.
      struct StopAt : EventSink {
        std::int64_t step;
        SinkAction on_event(const Event& event) override {
          const auto* e = std::get_if<CheckpointEvent>(&event);
          return e && e->step == step ? SinkAction::kStop : SinkAction::kContinue;
        }
      } stop_at;
      stop_at.step = stop;
      TrainConfig first = config;
      first.checkpoint_every = stop;
      TinyRun tiny(first, folder_ / "train.bin", dtype);
      Trainer trainer(first, tiny.model, tiny.source, tiny.optimizer);
      Recorder recorder;
      trainer.add_sink(recorder);
      trainer.add_sink(stop_at);
      trainer.save_to(folder_ / "run");
      trainer.run();
      std::vector<float> parts = recorder.losses();
      ASSERT_EQ(parts.size(), static_cast<std::size_t>(stop));
      const auto rest = run(config, *latest_checkpoint(folder_ / "run"), dtype).losses();
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_EQ(parts, whole) << "stopped after " << stop;
    }
  }
}

TEST_F(TrainerTest, ResumeKeepsTheBestValidation) {
  testing::write_tokens(folder_ / "val.bin", 100, 61, 6);
  TrainConfig config = tiny_config();
  config.val_every = 5;
  config.val_tokens = 0;
  config.checkpoint_every = 5;
  const auto run_with_val = [&](std::int64_t max_steps, bool resume) {
    config.max_steps = max_steps;
    TinyRun tiny(config, folder_ / "train.bin");
    DataLoaderOptions options = TinyRun::loader_options(config);
    options.shuffle = false;
    options.tail = Tail::kPad;
    DataLoader val(glob_files((folder_ / "val.bin").string()), options);
    Trainer trainer(config, tiny.model, tiny.source, tiny.optimizer);
    trainer.validate_on(val, {1.0, 0.5});
    Recorder recorder;
    trainer.add_sink(recorder);
    trainer.save_to(folder_ / "run");
    if (resume) {
      CheckpointReader reader(*latest_checkpoint(folder_ / "run"));
      trainer.resume(reader);
    }
    trainer.run();
    return recorder;
  };
  const Recorder first = run_with_val(5, false);
  EXPECT_EQ(first.steps<ValEvent>(), (std::vector<std::int64_t>{0, 5}));
  const ValEvent val = first.all<ValEvent>()[1];
  EXPECT_EQ(val.tokens, 99);
  EXPECT_NEAR(*val.bits_per_byte, val.loss / std::log(2.0), 1e-9);
  const Recorder second = run_with_val(10, true);
  EXPECT_EQ(second.steps<ValEvent>(), (std::vector<std::int64_t>{10}));
  const StopEvent stop = second.all<StopEvent>()[0];
  EXPECT_EQ(*stop.best_loss, std::min(val.loss, second.all<ValEvent>()[0].loss));
}

TEST_F(TrainerTest, OtherMicroBatchesGiveNearlyTheSameRun) {
  TrainConfig config = tiny_config();
  config.shuffle = false;
  const auto base = run(config).losses();
  for (const std::int64_t micro_batch : {1, 4}) {
    config.micro_batch = micro_batch;
    const auto other = run(config).losses();
    ASSERT_EQ(other.size(), base.size());
    // An epoch of 18 micro-batches of 2, 36 of 1, 9 of 4 sequences: the same sequences.
    for (std::size_t i = 0; i < base.size(); ++i) {
      EXPECT_NEAR(other[i], base[i], 1e-4f * base[i])
          << "micro_batch " << micro_batch << " step " << i;
    }
  }
}

TEST_F(TrainerTest, EpochsSetTheLength) {
  TrainConfig config = tiny_config();
  config.max_steps = 0;
  config.epochs = 3;
  EXPECT_EQ(run(config).all<StartEvent>()[0].total_steps, 3 * 18 / 2);
}

TEST_F(TrainerTest, Intervals) {
  testing::write_tokens(folder_ / "val.bin", 100, 61, 6);
  TrainConfig config = tiny_config();
  config.max_steps = 5;
  config.val_every = 2;
  config.sample_every = 3;
  config.sample_tokens = 4;
  config.checkpoint_every = 4;
  config.log_every = 3;
  TinyRun tiny(config, folder_ / "train.bin");
  DataLoader val(glob_files((folder_ / "val.bin").string()), TinyRun::loader_options(config));
  Trainer trainer(config, tiny.model, tiny.source, tiny.optimizer);
  trainer.validate_on(val);
  trainer.save_to(folder_ / "run");
  Recorder recorder;
  trainer.add_sink(recorder);
  trainer.run();
  EXPECT_EQ(recorder.steps<ValEvent>(), (std::vector<std::int64_t>{0, 2, 4, 5}));
  EXPECT_EQ(recorder.steps<SampleEvent>(), (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(recorder.steps<CheckpointEvent>(), (std::vector<std::int64_t>{4, 5}));
  std::vector<std::int64_t> logged;
  for (const StepEvent& e : recorder.all<StepEvent>()) {
    if (e.log) logged.push_back(e.step);
  }
  EXPECT_EQ(logged, (std::vector<std::int64_t>{1, 3, 5}));
  // Without a tokenizer a sample is four ids.
  const std::string text = recorder.all<SampleEvent>()[0].text;
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 3);
}

TEST_F(TrainerTest, IntervalsOfZeroMeanNever) {
  testing::write_tokens(folder_ / "val.bin", 100, 61, 6);
  TrainConfig config = tiny_config();
  config.log_every = 0;
  TinyRun tiny(config, folder_ / "train.bin");
  DataLoader val(glob_files((folder_ / "val.bin").string()), TinyRun::loader_options(config));
  Trainer trainer(config, tiny.model, tiny.source, tiny.optimizer);
  trainer.validate_on(val);
  trainer.save_to(folder_ / "run");
  Recorder recorder;
  trainer.add_sink(recorder);
  trainer.run();
  EXPECT_TRUE(recorder.all<ValEvent>().empty());
  EXPECT_TRUE(recorder.all<SampleEvent>().empty());
  EXPECT_TRUE(recorder.all<CheckpointEvent>().empty());
  for (const StepEvent& e : recorder.all<StepEvent>()) EXPECT_FALSE(e.log);
  EXPECT_FALSE(latest_checkpoint(folder_ / "run"));
}

/// Makes one weight infinite for some batches, counted from 1.
class PoisonedSource : public BatchSource {
 public:
  PoisonedSource(BatchSource& source, Transformer& model, std::int64_t first, std::int64_t last)
      : source_(source),
        stream_(model.stream()),
        weight_(model.parameters().value("blocks.0.attn.qkv.weight").flat(0, 1)),
        first_(first),
        last_(last) {}
  std::int64_t B() const override { return source_.B(); }
  std::int64_t T() const override { return source_.T(); }
  void next(Batch& batch) override {
    ++count_;
    if (count_ == first_) {
      good_ = testing::read_values(stream_, weight_);
      testing::write_values(stream_, weight_, {std::numeric_limits<float>::infinity()});
    }
    if (count_ == last_ + 1) testing::write_values(stream_, weight_, good_);
    source_.next(batch);
  }
  SourceState state() const override { return source_.state(); }
  void restore(const SourceState& state) override { source_.restore(state); }
  void reset() override { source_.reset(); }
  std::int64_t epoch() const override { return source_.epoch(); }
  std::int64_t batches_per_epoch() const override { return source_.batches_per_epoch(); }
  std::int64_t tokens_per_epoch() const override { return source_.tokens_per_epoch(); }

 private:
  BatchSource& source_;
  Stream& stream_;
  Tensor weight_;
  std::vector<float> good_;
  std::int64_t first_, last_, count_ = 0;
};

TEST_F(TrainerTest, StepsThatAreNotFiniteAreSkippedAndTrainingGoesOn) {
  TrainConfig config = tiny_config();
  config.max_steps = 12;
  config.max_bad_steps = 3;
  TinyRun tiny(config, folder_ / "train.bin");
  PoisonedSource source(tiny.source, tiny.model, 9, 12);  // steps 5 and 6
  Trainer trainer(config, tiny.model, source, tiny.optimizer);
  Recorder recorder;
  trainer.add_sink(recorder);
  EXPECT_EQ(trainer.run().reason, StopReason::kFinished);
  EXPECT_EQ(recorder.steps<SkipEvent>(), (std::vector<std::int64_t>{5, 6}));
  EXPECT_EQ(recorder.all<SkipEvent>()[1].in_a_row, 2);
  EXPECT_NE(recorder.all<SkipEvent>()[0].reason, kNoSkip);
  EXPECT_EQ(recorder.all<StepEvent>().size(), 10u);
  for (const float loss : recorder.losses()) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_EQ(tiny.model.read_step_block().updates, 10);
}

TEST_F(TrainerTest, BadStepsInARowEndTheRunWithTheGoodCheckpointIntact) {
  TrainConfig config = tiny_config();
  config.max_bad_steps = 4;
  config.checkpoint_every = 1;
  config.keep_checkpoints = 1;
  TinyRun tiny(config, folder_ / "train.bin");
  PoisonedSource source(tiny.source, tiny.model, 9, 1000);
  Trainer trainer(config, tiny.model, source, tiny.optimizer);
  trainer.save_to(folder_ / "run");
  Recorder recorder;
  trainer.add_sink(recorder);
  set_log_sink({});
  const StopEvent stop = trainer.run();
  EXPECT_EQ(stop.reason, StopReason::kBadSteps);
  EXPECT_EQ(recorder.steps<SkipEvent>(), (std::vector<std::int64_t>{5, 6, 7, 8}));
  const auto checkpoint = latest_checkpoint(folder_ / "run");
  ASSERT_TRUE(checkpoint);
  CheckpointReader reader(*checkpoint);
  EXPECT_EQ(reader.info().step, 4);
  EXPECT_NO_THROW(reader.verify());
}

TEST_F(TrainerTest, AModelThatCannotBeSampledGoesOn) {
  TrainConfig config = tiny_config();
  config.max_steps = 6;
  config.max_bad_steps = 10;
  config.sample_every = 3;
  TinyRun tiny(config, folder_ / "train.bin");
  PoisonedSource source(tiny.source, tiny.model, 3, 8);  // steps 2 to 4
  Trainer trainer(config, tiny.model, source, tiny.optimizer);
  Recorder recorder;
  trainer.add_sink(recorder);
  set_log_sink({});
  EXPECT_EQ(trainer.run().reason, StopReason::kFinished);
  EXPECT_EQ(recorder.steps<SampleEvent>().back(), 6);
}

TEST_F(TrainerTest, ASinkCanStopTheRun) {
  struct Stopper : EventSink {
    SinkAction on_event(const Event& event) override {
      const auto* e = std::get_if<StepEvent>(&event);
      return e && e->step == 4 ? SinkAction::kStop : SinkAction::kContinue;
    }
  } stopper;
  const TrainConfig config = tiny_config();
  TinyRun tiny(config, folder_ / "train.bin");
  Trainer trainer(config, tiny.model, tiny.source, tiny.optimizer);
  trainer.save_to(folder_ / "run");
  Recorder recorder;
  trainer.add_sink(stopper);
  trainer.add_sink(recorder);
  const StopEvent stop = trainer.run();
  EXPECT_EQ(stop.reason, StopReason::kSink);
  EXPECT_GE(stop.step, 4);
  EXPECT_LE(stop.step, 5);
  EXPECT_EQ(recorder.all<StepEvent>().back().step, stop.step);
  EXPECT_EQ(latest_checkpoint(folder_ / "run"), checkpoint_folder(folder_ / "run", stop.step));
}

TEST_F(TrainerTest, TheStopFlagFinishesTheStepAndSaves) {
  std::atomic<int> flag{0};
  struct Setter : EventSink {
    std::atomic<int>* flag;
    SinkAction on_event(const Event& event) override {
      const auto* e = std::get_if<StepEvent>(&event);
      if (e && e->step == 3) *flag = 15;
      return SinkAction::kContinue;
    }
  } setter;
  setter.flag = &flag;
  const TrainConfig config = tiny_config();
  TinyRun tiny(config, folder_ / "train.bin");
  Trainer trainer(config, tiny.model, tiny.source, tiny.optimizer);
  trainer.save_to(folder_ / "run");
  trainer.stop_when(flag);
  trainer.add_sink(setter);
  const StopEvent stop = trainer.run();
  EXPECT_EQ(stop.reason, StopReason::kSignal);
  EXPECT_EQ(latest_checkpoint(folder_ / "run"), checkpoint_folder(folder_ / "run", stop.step));
}

TEST_F(TrainerTest, AThrowingSinkDoesNotLoseTheRun) {
  struct Thrower : EventSink {
    int calls = 0;
    SinkAction on_event(const Event&) override {
      if (++calls == 3) throw std::runtime_error("disk full");
      return SinkAction::kContinue;
    }
  } thrower;
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view message) { warnings.emplace_back(message); });
  TrainConfig config = tiny_config();
  config.max_steps = 6;
  TinyRun tiny(config, folder_ / "train.bin");
  Trainer trainer(config, tiny.model, tiny.source, tiny.optimizer);
  Recorder recorder;
  trainer.add_sink(thrower);
  trainer.add_sink(recorder);
  EXPECT_EQ(trainer.run().reason, StopReason::kFinished);
  set_log_sink({});
  EXPECT_EQ(thrower.calls, 3);
  EXPECT_EQ(recorder.all<StepEvent>().size(), 6u);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("disk full"), std::string::npos);
}

TEST_F(TrainerTest, RefusesWhatCannotRun) {
  TrainConfig config = tiny_config();
  TinyRun tiny(config, folder_ / "train.bin");
  config.tokens_per_step = 33;
  EXPECT_THROW(Trainer(config, tiny.model, tiny.source, tiny.optimizer), Error);
  config.tokens_per_step = 16 * 1000;
  config.max_steps = 0;
  EXPECT_THROW(Trainer(config, tiny.model, tiny.source, tiny.optimizer), Error);
}

TEST_F(TrainerTest, WhatComesBetweenStepsIsNotTheirTime) {
  static constexpr double kPause = 0.05;
  class Pauses : public EventSink {
   public:
    SinkAction on_event(const Event& event) override {
      if (std::holds_alternative<ValEvent>(event)) {
        std::this_thread::sleep_for(std::chrono::duration<double>(kPause));
        ++count;
      }
      return SinkAction::kContinue;
    }
    int count = 0;
  } pauses;
  TrainConfig config = tiny_config();
  config.max_steps = 9;
  config.val_every = 2;
  TinyRun tiny(config, folder_ / "train.bin");
  Trainer trainer(config, tiny.model, tiny.source, tiny.optimizer);
  testing::write_tokens(folder_ / "val.bin", 100, 61, 6);
  DataLoader val(glob_files((folder_ / "val.bin").string()), TinyRun::loader_options(config));
  trainer.validate_on(val);
  Recorder recorder;
  trainer.add_sink(pauses);
  trainer.add_sink(recorder);
  const double all = trainer.run().seconds;
  double steps = 0;
  for (const StepEvent& event : recorder.all<StepEvent>()) {
    EXPECT_GT(event.ms, 0) << event.step;
    steps += event.ms / 1000;
  }
  EXPECT_EQ(pauses.count, 6) << "after 0, 2, 4, 6, 8 and 9 steps";
  EXPECT_LE(steps, all - pauses.count * kPause);
}

TEST_F(TrainerTest, TimeLeftFollowsTheMeanStep) {
  TrainConfig config = tiny_config();
  config.max_steps = 60;
  const auto steps = run(config).all<StepEvent>();
  double ms = 0;
  ASSERT_EQ(steps.size(), 60u);
  for (const StepEvent& event : steps) {
    ms += event.ms;
    const auto step = static_cast<double>(event.step);
    const double left = (60 - step) * ms / step / 1000;
    EXPECT_NEAR(event.seconds_left, left, 1e-9 * left);
  }
}

}  // namespace
}  // namespace llmc
