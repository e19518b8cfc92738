// Runs train under mpirun, as a user does.

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>

#include "apps/program.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/io/checkpoint.h"
#include "llmc/train/sinks.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::Arguments;
using testing::operator+;
using testing::Outcome;
using testing::Program;
using testing::TempFolder;

class MpiTrain : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Open MPI may run as root and with more ranks than processors.
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    // Open MPI unloads its modules: the sanitizer could no longer tell whose leaks are whose.
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  }

  void SetUp() override {
    const Outcome outcome = testing::prepare_tales(folder_.path().string());
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }

  static std::string app(const char* name) { return concat(LLMC_APPS_DIR "/", name); }

  /// 12 sequences a step, whatever the number of ranks.
  static Arguments options() {
    return {"--n-layer",         "2",
            "--n-head",          "3",
            "--n-embd",          "15",
            "--block-size",      "32",
            "--tokenizer",       "byte",
            "--train-data",      "data/tales_train.bin",
            "--val-data",        "data/tales_val.bin",
            "--micro-batch",     "2",
            "--seq-len",         "24",
            "--tokens-per-step", "288",
            "--val-tokens",      "500",
            "--schedule",        "constant",
            "--sample-every",    "0"};
  }

  /// train as mpirun is to start it `count` times of `all`: each process says in pid.RANK which it
  /// is, and where there are fewer GPUs than ranks, they share, which NCCL takes for a mistake
  /// unless each seems to be on a machine of its own.
  static Arguments ranks(int count, int all) {
    std::string start = "echo $$ > pid.$OMPI_COMM_WORLD_RANK; ";
    if (const int gpus = visible_gpus(); gpus > 0 && gpus < all) {
      start += concat("export NCCL_HOSTID=rank_$OMPI_COMM_WORLD_RANK CUDA_VISIBLE_DEVICES=",
                      "$((OMPI_COMM_WORLD_RANK % ", gpus, ")); ");
    }
    return {"-np", concat(count), "sh", "-c", start + "exec \"$@\"", "sh", app("train")};
  }

  Outcome train(int count, const Arguments& more) {
    if (count == 1) return testing::run_app("train", options() + more, folder_.path().string());
    return Program(LLMC_MPIRUN, ranks(count, count) + options() + more, folder_.path().string())
        .wait();
  }

  LossCurves curves(const char* run) { return read_loss_curves(folder_ / run / "log.jsonl"); }

  TempFolder folder_;
};

void expect_close(const std::vector<LossPoint>& got, const std::vector<LossPoint>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].step, expected[i].step);
    EXPECT_NEAR(got[i].loss, expected[i].loss, 1e-5 * expected[i].loss) << got[i].step;
  }
}

TEST_F(MpiTrain, RanksTrainAsOneProcessAndGoOnWithOtherNumbers) {
  const Outcome alone = train(1, {"--out-dir", "alone", "--max-steps", "20", "--val-every", "5"});
  ASSERT_EQ(alone.status, 0) << alone.err;
  ASSERT_EQ(curves("alone").train.size(), 20u);
  for (const int count : {2, 3}) {
    const Outcome outcome =
        train(count, {"--out-dir", "run", "--max-steps", "20", "--val-every", "5", "--overwrite"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    expect_close(curves("run").train, curves("alone").train);
    expect_close(curves("run").val, curves("alone").val);
  }
  ASSERT_EQ(train(3, {"--out-dir", "parts", "--max-steps", "8"}).status, 0);
  ASSERT_EQ(train(2, {"--out-dir", "parts", "--max-steps", "15", "--resume", "auto"}).status, 0);
  ASSERT_EQ(train(1, {"--out-dir", "parts", "--max-steps", "20", "--resume", "auto"}).status, 0);
  expect_close(curves("parts").train, curves("alone").train);
}

TEST_F(MpiTrain, AProcessThatDoesNotStartIsNotWaitedForForever) {
  const Outcome outcome = Program(LLMC_MPIRUN,
                                  Arguments{"-np", "1", app("train")} + options() +
                                      Arguments{"--out-dir", "run", "--comm-deadline", "1", ":",
                                                "-np", "1", "sleep", "100"},
                                  folder_.path().string())
                              .wait();
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("(comm_deadline = 1 s)"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(MpiTrain, MixedConfigurationsAreRefusedByRankAndName) {
  const Arguments one = ranks(1, 2) + options() + Arguments{"--max-steps", "5", "--out-dir", "run"};
  const Outcome outcome =
      Program(LLMC_MPIRUN, one + Arguments{"--lr", "0.001", ":"} + one + Arguments{"--lr", "0.002"},
              folder_.path().string())
          .wait();
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("lr: expected the same on all ranks"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "config.toml"));
}

class MpiFolders : public MpiTrain {
 protected:
  void SetUp() override {
    MpiTrain::SetUp();
    for (const int rank : {0, 1}) std::filesystem::create_directories(of_rank(rank));
  }

  std::filesystem::path of_rank(int rank) const { return folder_ / concat("rank_", rank); }

  /// The program with two ranks, each in a folder of its own.
  Outcome run(const char* name, const Arguments& arguments) {
    const Arguments start{"-np", "2",      "sh", "-c", "cd rank_$OMPI_COMM_WORLD_RANK; exec \"$@\"",
                          "sh",  app(name)};
    return Program(LLMC_MPIRUN, start + arguments, folder_.path().string()).wait();
  }

  void expect_refusal(const Outcome& outcome, const std::string& what) {
    EXPECT_EQ(outcome.status, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(what + ": expected the same on all ranks"), std::string::npos)
        << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(of_rank(0) / "run" / "config.toml"));
  }

  /// A checkpoint of a model with other weights for each rank, as rank_N/model.
  void make_models() {
    for (const int rank : {0, 1}) {
      const std::string out = (of_rank(rank) / "model").string();
      ASSERT_EQ(train(1, {"--out-dir", out, "--max-steps", "1", "--seed", concat(rank)}).status, 0);
    }
  }
};

TEST_F(MpiFolders, DataOfOneSizeButOtherContentAreRefused) {
  for (const char* file : {"tales_train.bin", "tales_val.bin"}) {
    for (const int rank : {0, 1}) {
      std::filesystem::copy(folder_ / "data", of_rank(rank) / "data",
                            std::filesystem::copy_options::recursive |
                                std::filesystem::copy_options::overwrite_existing);
    }
    std::string bytes = read_text(of_rank(1) / "data" / file);
    bytes[bytes.size() - 10] ^= 1;
    write_text(of_rank(1) / "data" / file, bytes);
    const Outcome outcome = run("train", options() + Arguments{"--out-dir", "run"});
    expect_refusal(outcome, file[6] == 't' ? "content of the training data"
                                           : "content of the validation data");
  }
}

TEST_F(MpiFolders, OtherWeightsAreRefused) {
  make_models();
  std::filesystem::copy(folder_ / "data", of_rank(0) / "data");
  std::filesystem::copy(folder_ / "data", of_rank(1) / "data");
  expect_refusal(run("train", options() + Arguments{"--init-from", "model", "--out-dir", "run"}),
                 "weights to start with");
}

TEST_F(MpiFolders, AFolderThatNotAllSeeIsRefusedAndLeftAsItWas) {
  for (const int rank : {0, 1}) std::filesystem::copy(folder_ / "data", of_rank(rank) / "data");
  const Arguments start = options() + Arguments{"--max-steps", "1", "--out-dir"};
  const Outcome refused = run("train", start + Arguments{"new/run"});
  EXPECT_EQ(refused.status, 2) << refused.out;
  EXPECT_NE(refused.err.find("out_dir: expected a folder that all ranks see, got new/run, which "
                             "on rank 1"),
            std::string::npos)
      << refused.err;
  for (const int rank : {0, 1}) EXPECT_FALSE(std::filesystem::exists(of_rank(rank) / "new"));
  // As on a file system that both share.
  std::filesystem::create_directory(of_rank(0) / "new");
  std::filesystem::create_directory_symlink(of_rank(0) / "new", of_rank(1) / "new");
  const Outcome corrected = run("train", start + Arguments{"new/run"});
  EXPECT_EQ(corrected.status, 0) << corrected.err;
}

TEST_F(MpiFolders, EvalRefusesOtherModelsAndQuestions) {
  make_models();
  const std::string questions = R"({"ctx": "a", "endings": [" b", " c"], "label": 0})";
  write_text(of_rank(0) / "questions.jsonl", questions + "\n");
  write_text(of_rank(1) / "questions.jsonl", questions + "\n");
  const Arguments arguments{"--choices", "questions.jsonl", "--checkpoint"};
  expect_refusal(run("eval", arguments + Arguments{"model"}), "checkpoint");
  const std::string same = (of_rank(0) / "model").string();
  const Outcome good = run("eval", arguments + Arguments{same});
  EXPECT_EQ(good.status, 0) << good.err;
  write_text(of_rank(1) / "questions.jsonl", questions + "\n" + questions + "\n");
  expect_refusal(run("eval", arguments + Arguments{same}), "choices");
}

TEST_F(MpiFolders, WhyEvalGivesUpIsToldToTheOthers) {
  make_models();
  const std::string same = (of_rank(0) / "model").string();
  write_text(folder_ / "questions.jsonl", R"({"ctx": "a", "endings": [" b"], "label": 0})"
                                          "\n");
  const Outcome outcome = run("eval", {"--checkpoint", same, "--choices", "../questions.jsonl",
                                       "--predictions", "no/such/folder"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("eval: [file] cannot"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("an error ended it"), std::string::npos) << outcome.err;
}

// What only rank 0 sees is no communication that fails on the others, which could be tried again.
TEST_F(MpiTrain, AWrongOptionEndsAllAsSuch) {
  ASSERT_EQ(train(1, {"--out-dir", "run", "--max-steps", "1"}).status, 0);
  write_text(folder_ / "run/checkpoints/best.json", "{");
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = train(3, {"--out-dir", "run", "--max-steps", "2", "--resume", "auto"});
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_NE(outcome.err.find("best.json"), std::string::npos) << outcome.err;
  }
}

TEST_F(MpiTrain, ASignalThatMpirunPassesOnEndsTheRunOfAllWithACheckpoint) {
  Program program(LLMC_MPIRUN,
                  ranks(2, 2) + options() +
                      Arguments{"--out-dir", "run", "--max-steps", "1000000", "--checkpoint-every",
                                "0", "--val-every", "100", "--log-every", "0"},
                  folder_.path().string());
  ASSERT_TRUE(program.wait_for(" 100/1000000"));
  program.send(SIGUSR2);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.status, 128 + SIGUSR2);
  EXPECT_NE(outcome.out.find("(signal)"), std::string::npos) << outcome.out;
  const auto last = latest_checkpoint(folder_ / "run");
  ASSERT_TRUE(last) << outcome.out << outcome.err;
  verify_checkpoint(*last);
}

TEST_F(MpiTrain, AKilledRankEndsAllAndLeavesTheLastCheckpoint) {
  Program program(LLMC_MPIRUN,
                  ranks(3, 3) + options() +
                      Arguments{"--out-dir", "run", "--max-steps", "1000000", "--checkpoint-every",
                                "10", "--val-every", "0", "--log-every", "0"},
                  folder_.path().string());
  ASSERT_TRUE(program.wait_for("step_00000020"));
  const auto killed = std::chrono::steady_clock::now();
  kill(static_cast<pid_t>(std::stol(read_text(folder_ / "pid.1"))), SIGKILL);
  EXPECT_NE(program.wait().status, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(30));
  const auto last = latest_checkpoint(folder_ / "run");
  ASSERT_TRUE(last);
  verify_checkpoint(*last);
  const std::int64_t step = CheckpointReader(*last).info().step;
  const Outcome outcome =
      train(2, {"--out-dir", "run", "--resume", "auto", "--max-steps", concat(step + 3)});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(CheckpointReader(*latest_checkpoint(folder_ / "run")).info().step, step + 3);
}

class LaunchScript : public MpiTrain {
 protected:
  void SetUp() override {
    MpiTrain::SetUp();
    // Each rank says which process it is.
    write_text(folder_ / "train.sh", concat("#!/bin/sh\necho $$ > pid.$OMPI_COMM_WORLD_RANK\nexec ",
                                            app("train"), " \"$@\"\n"));
    std::filesystem::permissions(folder_ / "train.sh", std::filesystem::perms::owner_all);
    write_text(folder_ / "own.toml", "max_steps = 300\n");
    setenv("LLMC_TRAIN", (folder_ / "train.sh").c_str(), 1);
    setenv("LLMC_MPIRUN", LLMC_MPIRUN, 1);
  }

  Arguments script() const {
    return Arguments{LLMC_LAUNCH_DIR "/mpirun.sh",
                     "--ranks",
                     "3",
                     "--retries",
                     "2",
                     "--pause",
                     "0.1",
                     "own.toml"} +
           options() +
           Arguments{"--out-dir", "run", "--checkpoint-every", "50", "--val-every", "100"};
  }
};

TEST_F(LaunchScript, GoesOnAfterAKilledRankAsIfNothingHadHappened) {
  ASSERT_EQ(train(3, {"--config", "own.toml", "--out-dir", "whole", "--val-every", "100",
                      "--checkpoint-every", "0"})
                .status,
            0);
  Program program("/bin/bash", script(), folder_.path().string());
  ASSERT_TRUE(program.wait_for("step_00000100"));
  kill(static_cast<pid_t>(std::stol(read_text(folder_ / "pid.1"))), SIGKILL);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1 has ended"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("retry 1 of 2"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("resumed     after step "), std::string::npos) << outcome.out;
  ASSERT_EQ(curves("run").train.size(), 300u);
  for (std::size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(curves("run").train[i].loss, curves("whole").train[i].loss) << i;
  }
  EXPECT_EQ(curves("run").val.back().loss, curves("whole").val.back().loss);
}

TEST_F(LaunchScript, PassesASignalOnSoThatTheRunCanSave) {
  for (const int signal : {SIGTERM, SIGUSR2}) {
    SCOPED_TRACE(signal);
    Program program("/bin/bash", script() + Arguments{"--max-steps", "1000000", "--overwrite"},
                    folder_.path().string());
    ASSERT_TRUE(program.wait_for("step_00000050"));
    program.send(signal);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 128 + SIGUSR2) << outcome.err;
    EXPECT_NE(outcome.out.find("(signal)"), std::string::npos) << outcome.out;
    const auto last = latest_checkpoint(folder_ / "run");
    ASSERT_TRUE(last);
    verify_checkpoint(*last);
    EXPECT_EQ(CheckpointReader(*last).info().step,
              static_cast<std::int64_t>(curves("run").train.size()));
  }
}

}  // namespace
}  // namespace llmc
