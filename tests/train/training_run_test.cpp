#include "llmc/train/training_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"
#include "llmc/data/dataset_info.h"
#include "llmc/data/prepare.h"
#include "llmc/io/hf_model.h"
#include "llmc/train/run_folder.h"
#include "llmc/train/sinks.h"
#include "support/captured_log.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"
#include "support/tiny_bpe.h"
#include "train/tiny_run.h"

namespace llmc {
namespace {

using testing::Recorder;
using testing::TempFolder;

class TrainingRunTest : public ::testing::Test {
 protected:
  using Options = std::vector<std::pair<std::string, std::string>>;

  void SetUp() override {
    testing::write_tokens(folder_ / "train.bin", 293, 257, 5);
    testing::write_tokens(folder_ / "val.bin", 100, 257, 6);
    base_ = {{"n_layer", "1"},
             {"n_head", "2"},
             {"n_embd", "16"},
             {"block_size", "16"},
             {"tokenizer", "byte"},
             {"train_data", (folder_ / "train.bin").string()},
             {"val_data", (folder_ / "val.bin").string()},
             {"micro_batch", "2"},
             {"seq_len", "8"},
             {"tokens_per_step", "32"},
             {"max_steps", "20"},
             {"checkpoint_every", "5"},
             {"val_every", "5"},
             {"sample_every", "10"},
             {"sample_tokens", "8"},
             {"keep_checkpoints", "0"},
             {"threads", "1"},
             {"out_dir", out()}};
    set_log_sink({});
  }

  std::string out() const { return (folder_ / "run").string(); }

  // The base options with some replaced; an empty value takes one away.
  std::vector<ConfigSetting> settings(const Options& changes) const {
    std::vector<ConfigSetting> given;
    Options all = base_;
    all.insert(all.end(), changes.begin(), changes.end());
    for (const auto& [key, value] : all) {
      std::erase_if(given, [&key = key](const ConfigSetting& s) { return s.option->key == key; });
      if (!value.empty()) given.push_back({&find_option(key), value, "--" + key});
    }
    return given;
  }

  Recorder train(const Options& changes = {}) {
    TrainingRun run(plan_run(settings(changes), "test"));
    run.open();
    Recorder recorder;
    run.add_sink(recorder);
    run.run(nullptr);
    return recorder;
  }

  std::string error_of(const Options& changes) {
    try {
      train(changes);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  void expect_error(const Options& changes, std::initializer_list<const char*> parts) {
    const std::string message = error_of(changes);
    for (const char* part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
    }
  }

  TempFolder folder_;
  Options base_;
};

TEST_F(TrainingRunTest, LeavesACompleteRunFolder) {
  train();
  for (const char* name : {"config.toml", "log.jsonl", "main.log", "loss.svg", "tokenizer"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / name)) << name;
  }
  EXPECT_EQ(list_checkpoints(out()).size(), 4u);
  EXPECT_TRUE(best_checkpoint(out()));
  // What is written are the values in effect.
  TrainConfig config;
  apply_settings(config, read_config(folder_ / "run" / "config.toml"));
  EXPECT_EQ(config.vocab_size, 257);
  EXPECT_EQ(config.tokens_per_step, 32);
  EXPECT_EQ(config.lr, TrainConfig{}.lr);
  const LossCurves curves = read_loss_curves(folder_ / "run" / "log.jsonl");
  EXPECT_EQ(curves.train.size(), 20u);
  EXPECT_EQ(curves.val.size(), 5u);
}

TEST_F(TrainingRunTest, ConfigOfARunRepeatsIt) {
  const auto first = train().losses();
  std::vector<ConfigSetting> given = read_config(folder_ / "run" / "config.toml");
  given.push_back({&find_option("out_dir"), (folder_ / "again").string(), "--out-dir"});
  TrainingRun run(plan_run(given, "test"));
  run.open();
  Recorder recorder;
  run.add_sink(recorder);
  run.run(nullptr);
  EXPECT_EQ(recorder.losses(), first);
}

TEST_F(TrainingRunTest, AFolderWithARunIsRefused) {
  train({{"max_steps", "5"}});
  const std::string log = read_text(folder_ / "run" / "log.jsonl");
  expect_error({}, {"out_dir", out().c_str(), "--resume auto", "--overwrite"});
  EXPECT_EQ(read_text(folder_ / "run" / "log.jsonl"), log);
}

TEST_F(TrainingRunTest, OverwriteRemovesTheOldRunOnly) {
  train({{"max_steps", "10"}});
  write_text(folder_ / "run" / "notes.txt", "mine");
  train({{"max_steps", "5"}, {"overwrite", "true"}});
  EXPECT_EQ(list_checkpoints(out()).size(), 1u);
  EXPECT_EQ(read_loss_curves(folder_ / "run" / "log.jsonl").train.size(), 5u);
  EXPECT_EQ(read_text(folder_ / "run" / "notes.txt"), "mine");
}

TEST_F(TrainingRunTest, OverwriteKeepsTheOldRunIfTheNewOneCannotBegin) {
  train({{"max_steps", "5"}});
  const std::string log = read_text(folder_ / "run" / "log.jsonl");
  expect_error({{"overwrite", "true"}, {"train_data", "/no/such/file.bin"}}, {"/no/such/file.bin"});
  EXPECT_EQ(read_text(folder_ / "run" / "log.jsonl"), log);
  EXPECT_EQ(list_checkpoints(out()).size(), 1u);
}

TEST_F(TrainingRunTest, ResumeContinuesToTheBitAndCutsLogs) {
  const auto whole = train().losses();
  const std::string main_log = read_text(folder_ / "run" / "main.log");
  // As if it had been killed after step 13, whose log lines were written.
  remove_checkpoints_after(out(), 10);
  AppendFile(folder_ / "run" / "log.jsonl").append("{\"event\":\"step\",\"step\":21,\"lo");
  const auto rest = train({{"resume", "auto"}}).losses();
  EXPECT_EQ(rest, std::vector<float>(whole.begin() + 10, whole.end()));
  EXPECT_EQ(read_text(folder_ / "run" / "main.log"), main_log);
  const LossCurves curves = read_loss_curves(folder_ / "run" / "log.jsonl");
  ASSERT_EQ(curves.train.size(), 20u);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(curves.train[i].step, static_cast<std::int64_t>(i + 1));
    EXPECT_EQ(static_cast<float>(curves.train[i].loss), whole[i]);
  }
}

TEST_F(TrainingRunTest, ResumeNeedsNoOtherOptions) {
  const auto whole = train().losses();
  remove_checkpoints_after(out(), 5);
  const std::vector<ConfigSetting> given = {{&find_option("resume"), out(), "--resume"}};
  TrainingRun run(plan_run(given, "test"));
  EXPECT_EQ(run.config().n_embd, 16);
  run.open();
  Recorder recorder;
  run.add_sink(recorder);
  run.run(nullptr);
  EXPECT_EQ(recorder.losses(), std::vector<float>(whole.begin() + 5, whole.end()));
}

TEST_F(TrainingRunTest, ResumeIntoANewFolder) {
  train();
  const std::string checkpoint = checkpoint_folder(out(), 10).string();
  const std::string other = (folder_ / "other").string();
  const Recorder recorder = train({{"resume", checkpoint}, {"out_dir", other}});
  EXPECT_EQ(recorder.all<StepEvent>()[0].step, 11);
  EXPECT_EQ(list_checkpoints(out()).size(), 4u);
  EXPECT_EQ(list_checkpoints(other).size(), 2u);
  expect_error({{"resume", checkpoint}, {"out_dir", other}}, {"out_dir", "another run"});
}

TEST_F(TrainingRunTest, ResumeAutoStartsWhereThereIsNothing) {
  EXPECT_EQ(train({{"resume", "auto"}}).all<StepEvent>().size(), 20u);
  expect_error({{"resume", "auto"}, {"out_dir", ""}}, {"resume", "out_dir"});
  expect_error({{"resume", "auto"}, {"overwrite", "true"}}, {"resume or overwrite"});
  expect_error({{"resume", "/no/such/folder"}}, {"/no/such/folder"});
}

TEST_F(TrainingRunTest, ResumeAutoKeepsDamagedCheckpoints) {
  train({{"max_steps", "10"}});
  for (const auto& checkpoint : list_checkpoints(out())) {
    std::filesystem::remove(checkpoint / "manifest.json");
  }
  expect_error({{"resume", "auto"}}, {"resume", "damaged", "no manifest.json", "--overwrite"});
  EXPECT_TRUE(std::filesystem::exists(checkpoint_folder(out(), 10) / "model.safetensors"));
  EXPECT_EQ(error_of({{"overwrite", "true"}}), "");
}

TEST_F(TrainingRunTest, ResumeSaysWhatItPassesOver) {
  train();
  const auto warning_of = [&](const std::string& resume) {
    const testing::CapturedLog log;
    plan_run(settings({{"resume", resume}}), "test");
    return log.text();
  };
  EXPECT_EQ(warning_of("auto"), "");
  std::filesystem::remove(checkpoint_folder(out(), 5) / "manifest.json");
  EXPECT_EQ(warning_of("auto"), "");  // there is a newer one
  std::filesystem::remove(checkpoint_folder(out(), 15) / "manifest.json");
  std::filesystem::remove_all(checkpoint_folder(out(), 20));
  write_text(checkpoint_folder(out(), 20), "");
  const std::string expected =
      concat("going on from ", checkpoint_folder(out(), 10).string(),
             ", the newest whole checkpoint; passed over: ", checkpoint_folder(out(), 15).string(),
             " (has no manifest.json), ", checkpoint_folder(out(), 20).string(), " (is no folder)");
  EXPECT_EQ(warning_of("auto"), expected);
  EXPECT_EQ(warning_of(out()), expected);
  EXPECT_EQ(warning_of(checkpoint_folder(out(), 10).string()), "");
  EXPECT_EQ(train({{"resume", "auto"}}).steps<StepEvent>().front(), 11);
  EXPECT_EQ(warning_of("auto"), "");
}

TEST_F(TrainingRunTest, AStartThatFailsLeavesNoFolder) {
  const testing::FileSizeLimit full(100);  // less than config.toml
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  expect_error({{"out_dir", (folder_ / "runs/new/").string()}}, {"config.toml", "File too large"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
  make_folders(out());
  write_text(folder_ / "run" / "notes.txt", "mine");
  expect_error({}, {"config.toml", "File too large"});
  EXPECT_EQ(read_text(folder_ / "run" / "notes.txt"), "mine");
  std::signal(SIGXFSZ, before);
}

TEST_F(TrainingRunTest, ADamagedRecordOfTheBestShowsBeforeTraining) {
  train({{"max_steps", "10"}});
  const auto path = folder_ / "run" / "checkpoints" / "best.json";
  write_text(path, "x");
  TrainingRun run(plan_run(settings({{"resume", "auto"}}), "test"));
  EXPECT_THROW(run.open(), Error);
}

TEST_F(TrainingRunTest, WarnsOfStepsThatCannotHelp) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view message) { warnings.emplace_back(message); });
  train({{"max_steps", "5"}, {"warmup_steps", "5"}});
  train({{"max_steps", "5"}, {"resume", "auto"}});
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_NE(warnings[0].find("warmup_steps (5)"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[1].find("5 of 5 steps; raise max_steps"), std::string::npos) << warnings[1];
}

TEST_F(TrainingRunTest, AFolderTakesOneRunAtATime) {
  TrainingRun first(plan_run(settings({{"max_steps", "5"}}), "test"));
  first.open();
  const std::string log = read_text(folder_ / "run" / "log.jsonl");
  expect_error({{"resume", "auto"}}, {"run", "one in use"});
  expect_error({{"overwrite", "true"}}, {"run", "one in use"});
  EXPECT_EQ(read_text(folder_ / "run" / "log.jsonl"), log);
  EXPECT_EQ(first.run(nullptr).reason, StopReason::kFinished);
}

TEST_F(TrainingRunTest, ResumeRefusesChangedOptionsByName) {
  train({{"max_steps", "10"}});
  const Options changes = {{"lr", "1e-3"},
                           {"n_embd", "32"},
                           {"seed", "1"},
                           {"shuffle", "false"},
                           {"tokens_per_step", "64"},
                           {"seq_len", "16"},
                           {"precision", "bf16"},
                           {"schedule", "linear"},
                           {"train_data", (folder_ / "val.bin").string()},
                           {"val_tokens", "1"},
                           {"model", "gpt2-124M"}};
  for (const auto& [key, value] : changes) {
    expect_error({{"resume", "auto"}, {key, value}}, {key.c_str(), "cannot change on resume"});
  }
  // The values in effect do not differ here.
  EXPECT_EQ(error_of({{"resume", "auto"}, {"lr", "0.0003"}, {"vocab_size", "257"}}), "");
}

TEST_F(TrainingRunTest, ResumeTakesNewIntervalsLengthAndMicroBatch) {
  train({{"max_steps", "10"}});
  const Recorder recorder = train({{"resume", "auto"},
                                   {"max_steps", "14"},
                                   {"micro_batch", "4"},
                                   {"val_every", "2"},
                                   {"sample_every", "0"},
                                   {"checkpoint_every", "1"},
                                   {"log_every", "2"},
                                   {"threads", "2"}});
  EXPECT_EQ(recorder.steps<ValEvent>(), (std::vector<std::int64_t>{12, 14}));
  EXPECT_EQ(recorder.all<StartEvent>()[0].micro_steps, 1);
  EXPECT_EQ(recorder.all<CheckpointEvent>().size(), 4u);
  EXPECT_TRUE(recorder.all<SampleEvent>().empty());
}

TEST_F(TrainingRunTest, AMissingTokenizerDoesNotEndARun) {
  train({{"max_steps", "5"}});
  std::filesystem::remove_all(folder_ / "run" / kTokenizerFolder);
  write_text(folder_ / "run" / kTokenizerFolder, "broken");
  const Recorder recorder = train({{"resume", "auto"}, {"max_steps", "10"}});
  EXPECT_EQ(recorder.all<StopEvent>()[0].reason, StopReason::kFinished);
  const std::string ids = recorder.all<SampleEvent>().back().text;
  EXPECT_EQ(ids.find_first_not_of("0123456789 "), std::string::npos) << ids;
}

TEST_F(TrainingRunTest, DataOfAnotherTokenizerAreRefused) {
  DatasetInfo info;
  info.tokenizer = "gpt2";
  info.tokenizer_hash = "0123456789abcdef";
  info.vocab_size = 257;
  info.end_of_text = 256;
  info.files = {{"other_train.bin", 293, 293, std::nullopt}};
  write_dataset_info(folder_ / "other.json", info);
  std::filesystem::copy(folder_ / "train.bin", folder_ / "other_train.bin");
  const std::string data = (folder_ / "other_train.bin").string();
  expect_error({{"train_data", data}}, {"other_train.bin", "tokenizer"});
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(TrainingRunTest, PreparedDataBringTheirTokenizer) {
  PrepareOptions options;
  options.corpus = "tales";
  options.bytes = 2000;
  options.out_dir = folder_.path();
  options.name = "tales";
  const Options prepared = {
      {"tokenizer", ""},  {"vocab_size", ""},
      {"val_data", ""},   {"train_data", (folder_ / "tales_train.bin").string()},
      {"max_steps", "5"}, {"overwrite", "true"}};
  const auto config_of = [&](const Options& more) {
    Options all = prepared;
    all.insert(all.end(), more.begin(), more.end());
    train(all);
    TrainConfig config;
    apply_settings(config, read_config(folder_ / "run" / "config.toml"));
    return config;
  };
  prepare_dataset(options, *make_byte_tokenizer());
  EXPECT_EQ(config_of({}).tokenizer, "byte");
  EXPECT_EQ(config_of({}).vocab_size, 257);

  const auto tokenizer = testing::make_tiny_bpe();
  prepare_dataset(options, *tokenizer);
  EXPECT_EQ(config_of({}).tokenizer, (folder_ / "tales_tokenizer").string());
  EXPECT_EQ(load_tokenizer(folder_ / "run" / kTokenizerFolder)->hash(), tokenizer->hash());

  // The sidecar still tells the size where the copy has gone.
  std::filesystem::remove_all(folder_ / "tales_tokenizer");
  EXPECT_EQ(config_of({}).tokenizer, "");
  EXPECT_EQ(config_of({}).vocab_size, 258);

  const std::filesystem::path sidecar = folder_ / "tales.json";
  std::filesystem::rename(sidecar, folder_ / "kept.json");
  const auto error = [&] { return error_of(prepared); };
  EXPECT_EQ(error(),
            concat("[run] vocab_size: expected a number above 0, got 0; ", sidecar.string(),
                   ", which would tell it, is not there; give it, or a ", "preset with model"));
  DatasetInfo info = read_dataset_info(folder_ / "kept.json");
  info.files.clear();
  write_dataset_info(sidecar, info);
  EXPECT_NE(error().find(concat(sidecar.string(), ", which would tell it, does not list tales_")),
            std::string::npos)
      << error();
  std::filesystem::rename(folder_ / "kept.json", sidecar);

  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view message) { warnings.emplace_back(message); });
  EXPECT_EQ(config_of({{"vocab_size", "384"}}).vocab_size, 384);
  ASSERT_EQ(warnings.size(), 0u) << warnings[0];
  EXPECT_EQ(config_of({{"vocab_size", "512"}}).vocab_size, 512);
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("vocab_size is 512"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("258"), std::string::npos) << warnings[0];
}

TEST_F(TrainingRunTest, RefusesWhatDoesNotFitTogether) {
  expect_error({{"train_data", ""}}, {"train_data"});
  expect_error({{"n_layer", ""}}, {"n_layer", "model"});
  expect_error({{"n_head", "3"}}, {"n_head"});
  expect_error({{"seq_len", "17"}}, {"seq_len", "block_size"});
  expect_error({{"tokens_per_step", "33"}}, {"tokens_per_step", "multiple of 16"});
  expect_error({{"vocab_size", "100"}}, {"vocab_size", "257"});
  expect_error({{"model", "gpt5"}}, {"gpt5", "gpt2-124M"});
  expect_error({{"tokenizer", "/no/such/tokenizer"}}, {"/no/such/tokenizer"});
  expect_error({{"init_from", "/no/such/model"}}, {"/no/such/model"});
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(TrainingRunTest, PrecisionRecomputeAndIsaReachTheModel) {
  const Options again = {{"overwrite", "true"}, {"max_steps", "6"}, {"val_every", "0"}};
  const auto with = [&](Options more) {
    more.insert(more.end(), again.begin(), again.end());
    return train(more);
  };
  const auto plain = with({}).losses();
  EXPECT_EQ(with({{"recompute", "block"}}).losses(), plain);
  const auto bf16 = with({{"precision", "bf16"}}).losses();
  EXPECT_NE(bf16, plain);
  EXPECT_NEAR(bf16.back(), plain.back(), 0.02f * plain.back());
  if (backend_name() == "cpu") {
    const std::string device = with({{"isa", "portable"}}).all<StartEvent>()[0].device;
    EXPECT_NE(device.find("portable"), std::string::npos) << device;
  } else {
    expect_error({{"isa", "portable"}, {"overwrite", "true"}}, {"isa: expected auto"});
  }
}

TEST_F(TrainingRunTest, InitFromTakesWeightsAndSizes) {
  const auto first = train({{"max_steps", "10"}});
  const Options from = {{"init_from", out()}, {"n_layer", ""},
                        {"n_head", ""},       {"n_embd", ""},
                        {"block_size", ""},   {"out_dir", (folder_ / "second").string()},
                        {"max_steps", "5"}};
  const Recorder second = train(from);
  EXPECT_EQ(second.all<ValEvent>()[0].loss, first.all<ValEvent>().back().loss);
  EXPECT_EQ(second.all<StepEvent>()[0].step, 1);
  Options wrong = from;
  wrong.push_back({"n_embd", "32"});
  expect_error(wrong, {"n_embd", "expected 16"});
}

TEST_F(TrainingRunTest, InitFromAHuggingFaceFolderTakesItsTokenizer) {
  const auto first = train({{"max_steps", "10"}});
  ModelLoader loader(out());
  const auto byte = make_byte_tokenizer();
  const std::string hf = (folder_ / "hf").string();
  write_hf_model(hf, loader.weights(), {.tokenizer = byte.get()});
  const testing::CapturedLog log;
  const Options from = {{"init_from", hf}, {"n_layer", ""},    {"n_head", ""},
                        {"n_embd", ""},    {"block_size", ""}, {"out_dir", hf + "_run"},
                        {"tokenizer", ""}, {"max_steps", "5"}};
  EXPECT_EQ(train(from).all<ValEvent>()[0].loss, first.all<ValEvent>().back().loss);
  EXPECT_EQ(log.text(), "");
  TrainConfig config;
  apply_settings(config, read_config(hf + "_run/config.toml"));
  EXPECT_EQ(config.tokenizer, hf);
  EXPECT_EQ(load_tokenizer(hf + "_run/tokenizer")->hash(), byte->hash());

  // Without a readable tokenizer the run goes on.
  write_text(folder_ / "hf/tokenizer.json", "{");
  Options again = from;
  again.push_back({"out_dir", hf + "_again"});
  train(again);
  EXPECT_EQ(log.text().rfind("goes on without the model's tokenizer: ", 0), 0u) << log.text();
}

TEST_F(TrainingRunTest, DryRunReportsWithoutDataOrFolder) {
  const std::vector<ConfigSetting> given = {{&find_option("model"), "gpt2-1558M", "--model"},
                                            {&find_option("dry_run"), "true", "--dry-run"}};
  const TrainingRun run(plan_run(given, "test"));
  const std::string report = run.report();
  for (const char* part : {"1557", "FLOPs", "parameters", "gradients", "optimizer"}) {
    EXPECT_NE(report.find(part), std::string::npos) << part << " not in:\n" << report;
  }
}

TEST_F(TrainingRunTest, DefaultFolderIsNamedAfterTheConfig) {
  const RunPlan plan = plan_run(settings({{"out_dir", ""}}), "quick");
  EXPECT_EQ(plan.config.out_dir.rfind("runs/quick-20", 0), 0u) << plan.config.out_dir;
}

}  // namespace
}  // namespace llmc
