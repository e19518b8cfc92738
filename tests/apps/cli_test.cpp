// Runs the built programs as a user does.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <thread>

#include "apps/program.h"
#include "llmc/core/file.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/llmc_format.h"
#include "llmc/nn/transformer.h"
#include "llmc/train/sinks.h"
#include "llmc/train/train_config.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::Arguments;
using testing::operator+;
using testing::Outcome;
using testing::Program;
using testing::TempFolder;

class CliTest : public ::testing::Test {
 protected:
  Outcome run(const std::string& app, const Arguments& arguments) {
    return testing::run_app(app, arguments, folder_.path().string());
  }
  static std::string program(const std::string& app) { return LLMC_APPS_DIR "/" + app; }

  // Ends with one line on stderr that contains the parts, and with the status.
  void expect_refused(const std::string& app, const Arguments& arguments,
                      std::initializer_list<const char*> parts, int status = 2) {
    const Outcome outcome = run(app, arguments);
    std::string command = app;
    for (const std::string& argument : arguments) command += " " + argument;
    EXPECT_EQ(outcome.status, status) << command;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << command << "\n"
                                                                           << outcome.err;
    EXPECT_EQ(outcome.err.rfind(app + ": ", 0), 0u) << outcome.err;
    for (const char* part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos)
          << command << ": '" << part << "' not in: " << outcome.err;
    }
  }

  void prepare_data() {
    const Outcome outcome = testing::prepare_tales(folder_.path().string());
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }

  static Arguments tiny() {
    return {"--n-layer",     "1",  "--n-head",    "2",    "--n-embd",     "16",
            "--block-size",  "32", "--tokenizer", "byte", "--train-data", "data/tales_train.bin",
            "--micro-batch", "2",  "--threads",   "1",    "--val-data",   "data/tales_val.bin",
            "--val-tokens",  "192"};
  }

  std::vector<float> losses(const std::string& run_folder) {
    std::vector<float> out;
    for (const LossPoint& p : read_loss_curves(folder_ / run_folder / "log.jsonl").train) {
      out.push_back(static_cast<float>(p.loss));
    }
    return out;
  }

  TempFolder folder_;
};

TEST_F(CliTest, VersionAndHelp) {
  for (const char* app : {"train", "eval", "sample", "prepare"}) {
    const Outcome version = run(app, {"--version"});
    EXPECT_EQ(version.status, 0);
    EXPECT_EQ(version.out.rfind("llmc 0.", 0), 0u) << version.out;
    const Outcome help = run(app, {"--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_NE(help.out.find("Usage"), std::string::npos);
    EXPECT_EQ(help.err, "");
  }
  // CLI11 2.1 prints INTEGER=256, 2.4 INTEGER [256].
  const std::string sample_help = run("sample", {"--help"}).out;
  EXPECT_NE(sample_help.find("end-of-text"), std::string::npos) << sample_help;
  EXPECT_NE(run("train", {"--help"}).out.find("[constant|linear|cosine|wsd]=cosine"),
            std::string::npos);
  EXPECT_TRUE(sample_help.find("--max-new-tokens INTEGER=256") != std::string::npos ||
              sample_help.find("--max-new-tokens INTEGER [256]") != std::string::npos)
      << sample_help;
}

TEST_F(CliTest, TrainWithoutArgumentsPrintsThreeCommands) {
  const Outcome outcome = run("train", {});
  EXPECT_EQ(outcome.status, 0);
  for (const char* part :
       {"/prepare --corpus", "/train --config configs/quickstart.toml", "/sample --checkpoint"}) {
    const std::string line = concat("  ", LLMC_APPS_DIR, part);
    EXPECT_NE(outcome.out.find(line), std::string::npos) << line;
  }
}

TEST_F(CliTest, PrintOptionsIsTheCommittedPage) {
  EXPECT_EQ(run("train", {"--print-options"}).out, config_page());
}

TEST_F(CliTest, WrongOptionsAreRefused) {
  expect_refused("train", {"--mikro-batch", "3"}, {"--mikro-batch", "did you mean --micro-batch"});
  expect_refused("train", {"--lr"}, {"--lr", "expected a value after it"});
  expect_refused("train", {"--lr", "12x"}, {"lr", "number", "12x"});
  expect_refused("train", {"--max-steps", "1e3"}, {"max_steps", "integer"});
  expect_refused("train", {"--max-steps", "9223372036854775807"}, {"max_steps", "at most 9e+15"});
  expect_refused("train", {"--micro_batch=0"}, {"micro_batch", "at least 1"});
  expect_refused("train", {"--lr", "1", "--lr", "2"}, {"--lr", "twice"});
  expect_refused("train", {"--schedule", "cosin"}, {"schedule", "cosine"});
  expect_refused("train", {"--shuffle", "maybe"}, {"shuffle", "true or false"});
  expect_refused("train", {"stray"}, {"stray"});
  expect_refused("train", {"--model", "gpt5", "--dry-run"}, {"gpt5", "gpt2-124M"});
  expect_refused("train", {"--model", "gpt2-124M"}, {"train_data"});
  expect_refused("train", {"--model", "gpt2-124M", "--train-data", "none_*.bin"}, {"none_*.bin"});
  expect_refused("eval", {"--data", "x"}, {"--checkpoint"});
  expect_refused("eval", {"--checkpoint", "none", "--data", "x"}, {"none"});
  expect_refused("eval", {"--chekpoint", "none", "--data", "x"}, {"checkpoint"});
  expect_refused("sample", {"--checkpoint", "none"}, {"none"});
  expect_refused("sample", {"foo"}, {"'foo'"});
  expect_refused("sample", {}, {"--checkpoint"});
  expect_refused("sample", {"--checkpoint", "x", "--temperature", "hot"}, {"--temperature", "hot"});
  expect_refused("sample", {"--checkpoint", "x", "--top-p", "1.5"}, {"--top-p", "at most 1"});
}

TEST_F(CliTest, WrongConfigFilesAreRefused) {
  expect_refused("train", {"--config", "none.toml"}, {"none.toml"});
  const auto refused = [&](const char* text, std::initializer_list<const char*> parts) {
    write_text(folder_ / "c.toml", text);
    expect_refused("train", {"--config", "c.toml"}, parts);
  };
  refused("lrr = 1", {"c.toml:1", "lrr", "did you mean lr?"});
  refused("\nlr = 1x", {"c.toml:2", "lr", "1x"});
  refused("[model]\nn_layer = 2", {"c.toml:1", "section"});
  refused("lr = 1\nlr = 2", {"c.toml:2", "lr", "twice"});
}

TEST_F(CliTest, CommandLineBeatsFile) {
  prepare_data();
  write_text(folder_ / "c.toml", "max_steps = 3\nlr = 1e-3\n");
  const Outcome outcome = run(
      "train", tiny() + Arguments{"--config", "c.toml", "--max-steps", "2", "--out-dir", "run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  TrainConfig config;
  apply_settings(config, read_config(folder_ / "run" / "config.toml"));
  EXPECT_EQ(config.max_steps, 2);
  EXPECT_EQ(config.lr, 1e-3);
  EXPECT_EQ(losses("run").size(), 2u);
}

TEST_F(CliTest, DryRunPrintsThePlanAndTouchesNothing) {
  const Outcome outcome =
      run("train", {"--model", "gpt3-175B", "--precision", "bf16", "--dry-run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"parameters", "FLOPs", "gradients", "activations", "optimizer", "GiB"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " not in\n" << outcome.out;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
}

TEST_F(CliTest, TrainEvalSample) {
  prepare_data();
  const Outcome trained =
      run("train", tiny() + Arguments{"--max-steps", "6", "--val-every", "3", "--out-dir", "run",
                                      "--checkpoint-every", "3", "--sample-every", "6"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(trained.err, "");
  for (const char* part :
       {"step 1/6 | loss", "step 3/6 | val loss", "bits per byte (entropy 0.4",
        backend_name() == "cpu" ? "MFU n/a" : "MFU ", "--- sample after step 6 ---",
        "checkpoint run/checkpoints/", "stopped after step 6 (finished)"}) {
    EXPECT_NE(trained.out.find(part), std::string::npos) << part << " not in\n" << trained.out;
  }
  EXPECT_EQ(trained.out.find('\r'), std::string::npos) << "no progress line without a terminal";
  expect_refused("train", tiny() + Arguments{"--out-dir", "run"}, {"run", "--overwrite"});

  const Outcome json =
      run("eval", {"--checkpoint", "run", "--data", "data/tales_val.bin", "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  for (const char* key : {"\"tokens\":1999,", "\"loss\":", "\"perplexity\":", "\"bits_per_byte\":",
                          "\"entropy_bits_per_byte\":0.4"}) {
    EXPECT_NE(json.out.find(key), std::string::npos) << key << " not in " << json.out;
  }
  const Outcome plain = run(
      "eval", {"--checkpoint", "run/checkpoints/step_00000003", "--data", "data/tales_val.bin"});
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_NE(plain.out.find("perplexity"), std::string::npos);

  // Out of its run, and without what only training needs.
  std::filesystem::copy(folder_ / "run/checkpoints/step_00000006", folder_ / "apart");
  std::filesystem::remove(folder_ / "apart/optimizer.safetensors");
  expect_refused("sample", {"--checkpoint", "apart"}, {"--tokenizer", "apart", "RUN/tokenizer"});
  const Outcome apart = run("sample", {"--checkpoint", "apart", "--tokenizer", "run/tokenizer"});
  EXPECT_EQ(apart.status, 0) << apart.err;

  const Arguments sample = {"--checkpoint",     "run", "--prompt", "Caf\xc3\xa9",
                            "--max-new-tokens", "30",  "--seed",   "5",
                            "--num-samples",    "2"};
  const Outcome sampled = run("sample", sample);
  ASSERT_EQ(sampled.status, 0) << sampled.err;
  EXPECT_EQ(sampled.out.rfind("Caf\xc3\xa9", 0), 0u);
  EXPECT_NE(sampled.out.find("\n---\nCaf\xc3\xa9"), std::string::npos);
  EXPECT_NE(sampled.err.find("tok/s"), std::string::npos);
  EXPECT_EQ(run("sample", sample).out, sampled.out);
  EXPECT_NE(run("sample", sample + Arguments{"--top-k", "1"}).out, sampled.out);
  expect_refused("eval", {"--checkpoint", "run", "--data", "none.bin"}, {"none.bin"});
  write_text(folder_ / "short.bin", "short");
  expect_refused("eval", {"--checkpoint", "run", "--data", "short.bin"},
                 {"short.bin", "token file"});
}

TEST_F(CliTest, MoreIdsThanTheTokenizerHasAreNeverDrawn) {
  prepare_data();
  const Outcome trained =
      run("train", tiny() + Arguments{"--vocab-size", "5000", "--max-steps", "4", "--out-dir",
                                      "run", "--sample-every", "1", "--val-every", "0"});
  EXPECT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(trained.err.rfind("warning: vocab_size is 5000, but", 0), 0u) << trained.err;
  EXPECT_EQ(std::count(trained.err.begin(), trained.err.end(), '\n'), 1) << trained.err;
  const Outcome sampled = run("sample", {"--checkpoint", "run", "--max-new-tokens", "50"});
  EXPECT_EQ(sampled.status, 0) << sampled.err;
}

TEST_F(CliTest, JsonOfADivergedModelIsJson) {
  prepare_data();
  {
    const Device device = Device::open({1, "auto"});
    Transformer model(device, ModelConfig::gpt2(1, 2, 16, 32, 257), {});
    model.allocate();
    model.init(3);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    copy_from_host(model.stream(), model.parameters().value(0).flat(0, 1), &nan);
    ModelWeights weights(model.stream(), model.config(), model.parameters());
    write_llmc_model(folder_ / "model.bin", weights, DType::kF32);
  }
  const Outcome outcome =
      run("eval", {"--checkpoint", "model.bin", "--data", "data/tales_val.bin", "--json"});
  EXPECT_NE(outcome.out.find("\"loss\":null,\"perplexity\":null,\"bits_per_byte\":null,"),
            std::string::npos)
      << outcome.out << outcome.err;

  write_text(folder_ / "quiz.jsonl", R"({"ctx": "a", "endings": ["b", "c"], "label": 0})");
  const Outcome chosen =
      run("eval", {"--checkpoint", "model.bin", "--choices", "quiz.jsonl", "--tokenizer", "byte"});
  EXPECT_EQ(chosen.status, 1) << chosen.out;
  EXPECT_NE(chosen.err.find("the model has diverged"), std::string::npos) << chosen.err;
}

TEST_F(CliTest, ModelFilesOfLlmcTakeATokenizer) {
  prepare_data();
  {
    const Device device = Device::open({1, "auto"});
    Transformer model(device, ModelConfig::gpt2(1, 2, 16, 32, 257), {});
    model.allocate();
    model.init(3);
    ModelWeights weights(model.stream(), model.config(), model.parameters());
    write_llmc_model(folder_ / "model.bin", weights, DType::kF32);
  }
  expect_refused("sample", {"--checkpoint", "model.bin"}, {"--tokenizer", "model.bin"});
  const Outcome sampled = run("sample", {"--checkpoint", "model.bin", "--tokenizer", "byte",
                                         "--max-new-tokens", "5", "--prompt", "Ann"});
  EXPECT_EQ(sampled.status, 0) << sampled.err;
  EXPECT_EQ(sampled.out.rfind("Ann", 0), 0u);
  const Arguments evaluate = {"--checkpoint", "model.bin", "--data", "data/tales_val.bin",
                              "--json"};
  const Outcome with_sidecar = run("eval", evaluate);
  EXPECT_NE(with_sidecar.out.find("\"bits_per_byte\":8."), std::string::npos) << with_sidecar.out;
  // Without the sidecar, the tokenizer tells how many bytes the tokens stand for.
  std::filesystem::remove(folder_ / "data" / "tales.json");
  const std::string unknown = run("eval", evaluate).out;
  EXPECT_NE(unknown.find("\"bits_per_byte\":null"), std::string::npos) << unknown;
  const std::string decoded = run("eval", evaluate + Arguments{"--tokenizer", "byte"}).out;
  const auto up_to_bits = [](const std::string& json) {
    return json.substr(0, json.find(",\"entropy_bits_per_byte"));
  };
  EXPECT_EQ(up_to_bits(decoded), up_to_bits(with_sidecar.out));
  const Outcome tuned = run(
      "train", {"--init-from", "model.bin", "--train-data", "data/tales_train.bin", "--tokenizer",
                "byte", "--max-steps", "2", "--threads", "1", "--out-dir", "tuned"});
  EXPECT_EQ(tuned.status, 0) << tuned.err;
  expect_refused("train",
                 {"--init-from", "model.bin", "--model", "gpt2-124M", "--train-data",
                  "data/tales_train.bin", "--tokenizer", "byte", "--max-steps", "2"},
                 {"model: expected none, or one of ", "got gpt2-124M"});
}

TEST_F(CliTest, DataOfAnotherTokenizerAreRefused) {
  prepare_data();
  ASSERT_EQ(run("train", tiny() + Arguments{"--max-steps", "2", "--out-dir", "run"}).status, 0);
  std::string info = read_text(folder_ / "data" / "tales.json");
  const std::string key = "\"tokenizer_hash\": \"";
  info.replace(info.find(key) + key.size(), 4, "0000");
  write_text(folder_ / "data" / "tales.json", info);
  expect_refused("eval", {"--checkpoint", "run", "--data", "data/tales_val.bin"},
                 {"tales_val.bin", "tokenizer"});
  expect_refused("train", tiny() + Arguments{"--max-steps", "2", "--out-dir", "other"},
                 {"tales_train.bin", "tokenizer"});
}

TEST_F(CliTest, SignalsFinishTheStepAndSave) {
  prepare_data();
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    const Arguments arguments =
        tiny() + Arguments{"--max-steps", "100000", "--out-dir",          "run", "--overwrite",
                           "--val-every", "0",      "--checkpoint-every", "0"};
    Program program_run(program("train"), arguments, folder_.path().string());
    ASSERT_TRUE(program_run.wait_for("step     20/100000"));
    program_run.send(signal);
    const Outcome outcome = program_run.wait();
    EXPECT_EQ(outcome.status, 128 + signal) << outcome.err;
    EXPECT_NE(outcome.out.find("(signal)"), std::string::npos);
    const auto checkpoint = latest_checkpoint(folder_ / "run");
    ASSERT_TRUE(checkpoint);
    CheckpointReader reader(*checkpoint);
    EXPECT_NO_THROW(reader.verify());
    EXPECT_EQ(static_cast<std::size_t>(reader.info().step), losses("run").size());
  }
}

TEST_F(CliTest, ProgramsThatWorkInOneProcessRefuseSeveral) {
  prepare_data();
  ASSERT_EQ(run("train", tiny() + Arguments{"--max-steps", "2", "--out-dir", "run"}).status, 0);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  for (const char* rank : {"0", "1"}) {
    setenv("OMPI_COMM_WORLD_RANK", rank, 1);
    const auto refused = [&](const char* app, const Arguments& arguments) {
      expect_refused(app, arguments, {"expected one process, got 2 started by mpirun", app});
    };
    refused("prepare", {"--corpus", "tales", "--bytes", "9000", "--out-dir", "twice"});
    refused("sample", {"--checkpoint", "run", "--max-new-tokens", "5"});
    refused("convert", {"--checkpoint", "run", "--out", "twice"});
    refused("tokenizer", {"encode", "--tokenizer", "byte"});
    refused("tokenizer", {"train", "--input", "data/tales_train.bin", "--out-dir", "twice"});
    EXPECT_EQ(run("sample", {"--help"}).status, 0);
  }
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  EXPECT_EQ(run("sample", {"--checkpoint", "run", "--max-new-tokens", "5"}).status, 0);
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("OMPI_COMM_WORLD_RANK");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "twice"));
}

TEST_F(CliTest, ASecondSignalQuitsAtOnce) {
  prepare_data();
  // A first step of many seconds.
  Program program_run(program("train"),
                      tiny() + Arguments{"--max-steps", "10", "--out-dir", "run", "--val-every",
                                         "0", "--seq-len", "32", "--tokens-per-step", "6400000"},
                      folder_.path().string());
  ASSERT_TRUE(program_run.wait_for("run         run"));
  program_run.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  program_run.send(SIGTERM);
  EXPECT_EQ(program_run.wait().status, 128 + SIGTERM);
  EXPECT_FALSE(latest_checkpoint(folder_ / "run"));
}

TEST_F(CliTest, KilledRunsResumeToTheBit) {
  prepare_data();
  const Arguments common =
      tiny() + Arguments{"--max-steps", "400", "--checkpoint-every", "20", "--val-every", "50"};
  ASSERT_EQ(run("train", common + Arguments{"--out-dir", "whole"}).status, 0);
  {
    Program killed(program("train"), common + Arguments{"--out-dir", "parts"},
                   folder_.path().string());
    ASSERT_TRUE(killed.wait_for("step  50/400"));
    killed.send(SIGKILL);
    EXPECT_EQ(killed.wait().status, 128 + SIGKILL);
  }
  const Outcome resumed =
      run("train", common + Arguments{"--out-dir", "parts", "--resume", "auto"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("resumed     after step "), std::string::npos);
  EXPECT_EQ(losses("parts"), losses("whole"));
  expect_refused("train", common + Arguments{"--out-dir", "parts", "--resume", "auto", "--lr", "1"},
                 {"lr", "cannot change on resume"});
}

TEST_F(CliTest, ClosedStreamsDoNotEndUpInTheRun) {
  prepare_data();
  std::string command = "'" + program("train") + "' --out-dir run --max-steps 3 --sample-every 0";
  for (const std::string& argument : tiny()) command += " " + argument;
  const Outcome outcome =
      Program("/bin/sh", {"-c", command + " >&- 2>&- <&-"}, folder_.path().string()).wait();
  EXPECT_EQ(outcome.status, 0);
  const std::string log = read_text(folder_ / "run" / "log.jsonl");
  EXPECT_EQ(log.rfind("{\"event\":\"start\"", 0), 0u);
  EXPECT_EQ(log.find("parameters,"), std::string::npos) << log;
  EXPECT_EQ(losses("run").size(), 3u);
}

TEST_F(CliTest, FilesBeyondTheLimitOfTheSystemAreAnError) {
  prepare_data();
  std::string command = "ulimit -f 16; '" + program("train") + "' --out-dir run --max-steps 3";
  for (const std::string& argument : tiny()) command += " " + argument;
  const Outcome outcome = Program("/bin/sh", {"-c", command}, folder_.path().string()).wait();
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("model.safetensors: File too large"), std::string::npos)
      << outcome.err;
}

TEST_F(CliTest, FailuresWhileRunningExitWithOne) {
  prepare_data();
  // Every loss above the mean is an outlier, so the run ends by itself.
  const Outcome outcome =
      run("train", tiny() + Arguments{"--max-steps", "1000", "--out-dir", "run", "--lr", "100",
                                      "--grad-clip", "0", "--skip-loss-z", "1e-5",
                                      "--max-bad-steps", "2", "--val-every", "0"});
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("(bad steps)"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.err.rfind("train: [run] expected fewer than max_bad_steps (2)", 0), 0u)
      << outcome.err;
}

}  // namespace
}  // namespace llmc
