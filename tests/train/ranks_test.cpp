// Training runs of several ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"
#include "llmc/train/sinks.h"
#include "llmc/train/training_run.h"
#include "support/temp_folder.h"
#include "support/tensor_values.h"
#include "support/thread_ranks.h"
#include "train/ranks.h"
#include "train/tiny_run.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::Recorder;
using testing::TempFolder;

class RanksTest : public ::testing::Test {
 protected:
  using Options = std::vector<std::pair<std::string, std::string>>;

  void SetUp() override {
    testing::write_tokens(folder_ / "train.bin", 293, 257, 5);
    testing::write_tokens(folder_ / "val.bin", 150, 257, 6);
    // 12 rows a step; 3 heads; T below block_size; a validation of 10 rows, the last one in part.
    base_ = {{"n_layer", "2"},          {"n_head", "3"},
             {"n_embd", "15"},          {"block_size", "16"},
             {"vocab_size", "257"},     {"train_data", (folder_ / "train.bin").string()},
             {"micro_batch", "1"},      {"val_data", (folder_ / "val.bin").string()},
             {"seq_len", "8"},          {"tokens_per_step", "96"},
             {"max_steps", "20"},       {"schedule", "constant"},
             {"checkpoint_every", "5"}, {"val_every", "5"},
             {"val_tokens", "77"},      {"sample_every", "10"},
             {"sample_tokens", "8"},    {"keep_checkpoints", "0"},
             {"threads", "1"},          {"lr", "0.003"},
             {"out_dir", out()}};
    set_log_sink({});
  }

  std::string out() const { return (folder_ / "run").string(); }

  std::vector<ConfigSetting> settings(const Options& changes) const {
    std::vector<ConfigSetting> given;
    for (const auto* options : {&base_, &changes}) {
      for (const auto& [key, value] : *options) {
        given.push_back({&find_option(key), value, "--" + key});
      }
    }
    return given;
  }

  /// What each rank saw of a run.
  std::vector<Recorder> train(int ranks, const Options& changes = {}) {
    std::vector<Recorder> seen(static_cast<std::size_t>(ranks));
    testing::run_thread_ranks(ranks, [&](Communicator& comm) {
      RunPlan plan = plan_run(settings(changes), "test", ranks);
      const Device device = Device::open(device_options(plan.config));
      TrainingRun run(device, std::move(plan), &comm);
      run.open();
      run.add_sink(seen[static_cast<std::size_t>(comm.rank())]);
      run.run(nullptr);
    });
    return seen;
  }

  Recorder train_alone(const Options& changes = {}) {
    TrainingRun run(plan_run(settings(changes), "test"));
    run.open();
    Recorder seen;
    run.add_sink(seen);
    run.run(nullptr);
    return seen;
  }

  fs::path other(const std::string& name) const { return folder_ / name; }

  TempFolder folder_;
  Options base_;
};

void expect_close(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-5f * std::abs(expected[i])) << "step " << i;
  }
}

TEST_F(RanksTest, RepeatTheRunOfOneProcess) {
  const Recorder alone = train_alone({{"out_dir", other("alone").string()}});
  for (const int ranks : {2, 3, 4}) {
    const std::string out_dir = other(concat("ranks_", ranks)).string();
    const auto seen = train(ranks, {{"out_dir", out_dir}});
    for (const Recorder& recorder : seen) {
      EXPECT_EQ(recorder.losses(), seen[0].losses());
      EXPECT_EQ(recorder.steps<ValEvent>(), alone.steps<ValEvent>());
    }
    expect_close(seen[0].losses(), alone.losses());
    const auto validations = seen[0].all<ValEvent>();
    for (std::size_t i = 0; i < validations.size(); ++i) {
      const ValEvent expected = alone.all<ValEvent>()[i];
      EXPECT_EQ(validations[i].tokens, 80);
      EXPECT_EQ(validations[i].tokens, expected.tokens);
      EXPECT_NEAR(validations[i].loss, expected.loss, 1e-5 * expected.loss);
    }
    const StartEvent start = seen[0].all<StartEvent>()[0];
    EXPECT_EQ(start.tokens_per_step, 96);
    EXPECT_EQ(start.micro_steps, 12 / ranks);
    EXPECT_EQ(seen[0].all<StepEvent>()[19].tokens, 20 * 96);
    // Rank 0 alone samples, and writes the logs.
    EXPECT_EQ(seen[0].all<SampleEvent>().size(), 2u);
    EXPECT_TRUE(seen[1].all<SampleEvent>().empty());
    EXPECT_EQ(read_loss_curves(fs::path(out_dir) / "log.jsonl").train.size(), 20u);
  }
}

TEST_F(RanksTest, ShowNoDifferenceBetweenTheStages) {
  const auto sliced = train(3, {{"out_dir", other("sliced").string()}});
  const auto whole = train(3, {{"out_dir", other("whole").string()}, {"zero_stage", "0"}});
  EXPECT_EQ(whole[2].losses(), sliced[1].losses());
  EXPECT_TRUE(fs::exists(checkpoint_folder(other("whole"), 20) / "optimizer.safetensors"));
  EXPECT_FALSE(fs::exists(checkpoint_folder(other("sliced"), 20) / "optimizer.safetensors"));
  for (const char* name : {"sliced", "whole"}) {
    EXPECT_EQ(CheckpointReader(checkpoint_folder(other(name), 20)).info().world_size, 3);
  }
  const auto state = [&](const char* name) {
    RunPlan plan = plan_run(settings({{"resume", other(name).string()}}), "test");
    const Device device = Device::open(device_options(plan.config));
    Transformer model(device, plan.model, {.micro_batch = 1, .seq_len = 8});
    AdamW optimizer(model.parameters(), {});
    model.allocate();
    optimizer.allocate(device);
    CheckpointReader reader(*plan.checkpoint);
    reader.read_all(model.stream(), model.parameters(), optimizer, model.step_block());
    std::vector<std::vector<char>> all;
    optimizer.visit_state([&](const StatePiece& piece) {
      all.push_back(testing::read_bytes(model.stream(), piece.tensor));
    });
    return all;
  };
  EXPECT_TRUE(state("sliced") == state("whole"));
}

TEST_F(RanksTest, EachWriteTheirSlices) {
  train(4, {{"max_steps", "5"}});
  const fs::path folder = checkpoint_folder(out(), 5);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names,
            (std::vector<std::string>{"manifest.json", "model.safetensors",
                                      "optimizer_0000.safetensors", "optimizer_0001.safetensors",
                                      "optimizer_0002.safetensors", "optimizer_0003.safetensors"}));
  verify_checkpoint(folder);
}

TEST_F(RanksTest, GoOnWithAnyOtherNumber) {
  const Recorder alone = train_alone({{"out_dir", other("alone").string()}});
  std::vector<float> losses;
  const auto go_on = [&](int ranks, const char* max_steps, const char* stage) {
    const auto seen =
        train(ranks, {{"resume", "auto"}, {"max_steps", max_steps}, {"zero_stage", stage}});
    const auto part = seen.back().losses();
    losses.insert(losses.end(), part.begin(), part.end());
  };
  go_on(4, "5", "1");
  go_on(2, "10", "1");
  go_on(3, "15", "0");
  go_on(2, "17", "1");
  const auto last = train_alone({{"resume", "auto"}}).losses();
  losses.insert(losses.end(), last.begin(), last.end());
  expect_close(losses, alone.losses());
  EXPECT_EQ(read_loss_curves(fs::path(out()) / "log.jsonl").train.size(), 20u);
}

TEST_F(RanksTest, RepeatThemselvesToTheBitAfterAResume) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Options options{{"precision", precision}, {"overwrite", "true"}};
    Options straight = options;
    straight.emplace_back("out_dir", other("straight").string());
    const auto whole = train(3, straight)[0].losses();
    Options first = options;
    first.emplace_back("max_steps", "7");
    auto parts = train(3, first)[0].losses();
    const auto rest = train(3, {{"resume", "auto"}, {"max_steps", "20"}})[0].losses();
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << precision;
  }
}

TEST_F(RanksTest, AskTheirQuestionsTogether) {
  const fs::path questions = folder_ / "questions.jsonl";
  std::string lines;
  for (const char* line : {R"({"ctx": "ab", "endings": [" c", " de"], "label": 0})",
                           R"({"ctx": "xy", "endings": [" q", " r", " s"], "label": 2})",
                           R"({"ctx": "m", "endings": [" nop", " p"], "label": 1})"}) {
    lines += concat(line, "\n");
  }
  write_text(questions, lines);
  const Options asked{{"tokenizer", "byte"},
                      {"max_steps", "5"},
                      {"eval_choices", questions.string()},
                      {"eval_choices_every", "5"}};
  Options alone = asked;
  alone.emplace_back("out_dir", other("alone").string());
  const auto expected = train_alone(alone).all<ChoicesEvent>();
  ASSERT_EQ(expected.size(), 2u);
  for (const Recorder& recorder : train(2, asked)) {
    const auto got = recorder.all<ChoicesEvent>();
    ASSERT_EQ(got.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(got[i].accuracy.examples, 3);
      EXPECT_EQ(got[i].accuracy.acc, expected[i].accuracy.acc);
      EXPECT_EQ(got[i].accuracy.acc_token, expected[i].accuracy.acc_token);
    }
  }
}

// Raises a flag, as a signal does, after a step.
struct RaiseAt : EventSink {
  explicit RaiseAt(std::int64_t at) : step(at) {}
  SinkAction on_event(const Event& event) override {
    if (std::holds_alternative<StepEvent>(event) && step_of(event) == step) flag = 15;
    return SinkAction::kContinue;
  }
  std::int64_t step;
  std::atomic<int> flag{0};
};

TEST_F(RanksTest, StopTogetherWhenOneIsAskedTo) {
  std::vector<StopEvent> stops(3);
  testing::run_thread_ranks(3, [&](Communicator& comm) {
    RunPlan plan = plan_run(settings({{"val_every", "0"}}), "test", 3);
    const Device device = Device::open(device_options(plan.config));
    TrainingRun run(device, std::move(plan), &comm);
    run.open();
    RaiseAt raise(6);
    if (comm.rank() == 1) run.add_sink(raise);
    stops[static_cast<std::size_t>(comm.rank())] = run.run(&raise.flag);
  });
  for (const StopEvent& stop : stops) {
    EXPECT_EQ(stop.reason, StopReason::kSignal);
    EXPECT_EQ(stop.signal, 15);
    EXPECT_EQ(stop.step, stops[0].step);
    EXPECT_GT(stop.step, 6);
    EXPECT_LE(stop.step, 9);
  }
  verify_checkpoint(checkpoint_folder(out(), stops[0].step));
}

TEST_F(RanksTest, DoWhatIsDueAtTheStepOfAStop) {
  const Options all{{"val_every", "1"}, {"sample_every", "1"}, {"checkpoint_every", "0"}};
  Options undisturbed = all;
  undisturbed.emplace_back("out_dir", other("whole").string());
  const Recorder whole = train(2, undisturbed)[0];
  std::vector<StopEvent> stops(2);
  std::vector<Recorder> seen(2);
  testing::run_thread_ranks(2, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    RunPlan plan = plan_run(settings(all), "test", 2);
    const Device device = Device::open(device_options(plan.config));
    TrainingRun run(device, std::move(plan), &comm);
    run.open();
    RaiseAt raise(6);
    if (comm.rank() == 1) run.add_sink(raise);
    run.add_sink(seen[rank]);
    stops[rank] = run.run(&raise.flag);
  });
  const std::int64_t step = stops[0].step;
  ASSERT_LT(step, 10);
  for (const Recorder& recorder : seen) EXPECT_EQ(recorder.steps<ValEvent>().back(), step);
  const auto saved = CheckpointReader(checkpoint_folder(out(), step)).info().val_loss;
  EXPECT_EQ(saved, seen[1].all<ValEvent>().back().loss);
  Recorder both = seen[0];
  Options resumed = all;
  resumed.emplace_back("resume", "auto");
  const Recorder rest = train(2, resumed)[0];
  both.events.insert(both.events.end(), rest.events.begin(), rest.events.end());
  EXPECT_EQ(both.steps<ValEvent>(), whole.steps<ValEvent>());
  EXPECT_EQ(both.steps<SampleEvent>(), whole.steps<SampleEvent>());
}

TEST_F(RanksTest, ASinkOfOneEndsTheRunOfAll) {
  std::vector<StopEvent> stops(2);
  testing::run_thread_ranks(2, [&](Communicator& comm) {
    RunPlan plan = plan_run(settings({}), "test", 2);
    const Device device = Device::open(device_options(plan.config));
    TrainingRun run(device, std::move(plan), &comm);
    run.open();
    struct StopAt : EventSink {
      SinkAction on_event(const Event& event) override {
        return std::holds_alternative<ValEvent>(event) && step_of(event) == 5
                   ? SinkAction::kStop
                   : SinkAction::kContinue;
      }
    } stop_at;
    if (comm.rank() == 0) run.add_sink(stop_at);
    stops[static_cast<std::size_t>(comm.rank())] = run.run(nullptr);
  });
  for (const StopEvent& stop : stops) {
    EXPECT_EQ(stop.reason, StopReason::kSink);
    EXPECT_EQ(stop.step, stops[0].step);
    EXPECT_LT(stop.step, 9);
  }
}

TEST_F(RanksTest, MustAgreeOnTheConfiguration) {
  std::mutex mutex;
  std::vector<std::string> messages;
  testing::run_thread_ranks(3, [&](Communicator& comm) {
    Options changes{{"threads", std::to_string(1 + comm.rank())}};
    if (comm.rank() == 2) changes.emplace_back("lr", "0.004");
    RunPlan plan = plan_run(settings(changes), "test", 3);
    const Device device = Device::open(device_options(plan.config));
    try {
      const TrainingRun run(device, std::move(plan), &comm);
    } catch (const Error& error) {
      const std::scoped_lock lock(mutex);
      messages.emplace_back(error.what());
    }
  });
  ASSERT_EQ(messages.size(), 3u);
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("lr: expected the same on all ranks"), std::string::npos) << message;
    EXPECT_NE(message.find("rank 2"), std::string::npos) << message;
  }
}

TEST_F(RanksTest, TakeTheFolderOfRank0) {
  testing::run_thread_ranks(2, [&](Communicator& comm) {
    RunPlan plan = plan_run(
        settings({{"out_dir", other(concat("of_rank_", comm.rank())).string()}}), "test", 2);
    const Device device = Device::open(device_options(plan.config));
    const TrainingRun run(device, std::move(plan), &comm);
    EXPECT_EQ(run.config().out_dir, other("of_rank_0").string());
  });
}

TEST_F(RanksTest, AgreeOnWhoDoesNotSeeTheFolderOfRank0) {
  const fs::path marker = folder_ / ".seen-by-all-ranks";
  const auto look = [&](const fs::path& folder_of_2) {
    std::vector<std::optional<int>> blind(4);
    testing::run_thread_ranks(4, [&](Communicator& comm) {
      Stream stream(Device::open({.threads = 1}));
      const fs::path& folder = comm.rank() == 2 ? folder_of_2 : folder_.path();
      blind[static_cast<std::size_t>(comm.rank())] = rank_without_folder(comm, stream, folder, 0.2);
    });
    EXPECT_FALSE(fs::exists(marker));
    for (const auto& rank : blind) EXPECT_EQ(rank, blind[0]);
    return blind[0];
  };
  EXPECT_EQ(look(folder_.path()), std::nullopt);
  EXPECT_EQ(look(fs::path(folder_.path().string() + "/.")), std::nullopt);
  fs::create_directory(folder_ / "own");
  write_text(folder_ / "own/.seen-by-all-ranks", "1-1");
  EXPECT_EQ(look(folder_ / "own"), 2);
  EXPECT_EQ(look(folder_ / "none"), 2);
  const auto fail_on_1 = [&](Communicator& comm) {
    Stream stream(Device::open({.threads = 1}));
    if (comm.rank() == 1) throw std::runtime_error("no more");
    rank_without_folder(comm, stream, folder_.path(), 0.2);
  };
  EXPECT_THROW(testing::run_thread_ranks(2, fail_on_1), std::runtime_error);
  EXPECT_FALSE(fs::exists(marker));
}

TEST_F(RanksTest, LeaveTheLastCheckpointWholeWhenOneCannotWrite) {
  EXPECT_THROW(testing::run_thread_ranks(
                   2,
                   [&](Communicator& comm) {
                     testing::TinyRun tiny(testing::tiny_config(), folder_ / "train.bin",
                                           DType::kF32, &comm);
                     const auto save = [&](const fs::path& run, std::int64_t step) {
                       CheckpointWriter writer(run, tiny.model.parameters(), tiny.optimizer, {});
                       CheckpointInfo info;
                       info.step = step;
                       info.model = tiny.model.config();
                       writer.save(tiny.model.stream(), info);
                       writer.wait();
                     };
                     save(out(), 1);
                     // Rank 1 sees another file system.
                     save(comm.rank() == 0 ? out() : other("elsewhere").string(), 2);
                   }),
               Error);
  EXPECT_EQ(latest_checkpoint(out()), checkpoint_folder(out(), 1));
  verify_checkpoint(checkpoint_folder(out(), 1));
}

TEST_F(RanksTest, DryRunsPlanForAnyNumber) {
  const auto report = [&](const char* ranks, const char* stage) {
    return TrainingRun(plan_run(settings({{"dry_run", "true"},
                                          {"dry_run_ranks", ranks},
                                          {"zero_stage", stage},
                                          {"tokens_per_step", "0"}}),
                                "test"))
        .report();
  };
  EXPECT_NE(report("8", "1").find("on each of 8 ranks with zero_stage 1"), std::string::npos);
  EXPECT_EQ(report("8", "1").find(", of the exchange ") != std::string::npos,
            Communicator::planned_memory(8) > 0);
  EXPECT_EQ(report("0", "1").find("ranks with"), std::string::npos);
}

TEST_F(RanksTest, MoreTokensAStepThanCanBeCountedAreRefused) {
  const Options most{{"dry_run", "true"},        {"dry_run_ranks", "1000000"},
                     {"block_size", "10000000"}, {"seq_len", "10000000"},
                     {"micro_batch", "1000000"}, {"tokens_per_step", "0"}};
  testing::expect_error(ErrorKind::kConfig, "micro_batch: expected micro_batch × seq_len × ranks",
                        [&] { plan_run(settings(most), "test", 1); });
}

}  // namespace
}  // namespace llmc
