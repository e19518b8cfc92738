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
    const Outcome outcome =
        Program(app("prepare"),
                {"--corpus", "tales", "--bytes", "20000", "--seed", "1", "--val-tokens", "2000",
                 "--out-dir", "data", "--name", "tales"},
                folder_.path().string())
            .wait();
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

  Outcome train(int ranks, const Arguments& more) {
    if (ranks == 1) return Program(app("train"), options() + more, folder_.path().string()).wait();
    return Program(LLMC_MPIRUN, Arguments{"-np", concat(ranks), app("train")} + options() + more,
                   folder_.path().string())
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
  for (const int ranks : {2, 3}) {
    const Outcome outcome =
        train(ranks, {"--out-dir", "run", "--max-steps", "20", "--val-every", "5", "--overwrite"});
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

TEST_F(MpiTrain, MixedConfigurationsAreRefusedByRankAndName) {
  const Arguments one = Arguments{"-np", "1", app("train")} + options() +
                        Arguments{"--max-steps", "5", "--out-dir", "run"};
  const Outcome outcome =
      Program(LLMC_MPIRUN, one + Arguments{"--lr", "0.001", ":"} + one + Arguments{"--lr", "0.002"},
              folder_.path().string())
          .wait();
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.err.find("lr: expected the same on all ranks"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "config.toml"));
}

TEST_F(MpiTrain, SignalsEndTheRunOfAllWithACheckpoint) {
  // Few lines: from the signal on, mpirun does not read what its processes print, and they would
  // wait for it. It always waits as long as this before it kills them.
  setenv("OMPI_MCA_odls_base_sigkill_timeout", "5", 1);
  Program program(LLMC_MPIRUN,
                  Arguments{"-np", "2", app("train")} + options() +
                      Arguments{"--out-dir", "run", "--max-steps", "1000000", "--checkpoint-every",
                                "0", "--val-every", "100", "--log-every", "0"},
                  folder_.path().string());
  ASSERT_TRUE(program.wait_for(" 100/1000000"));
  program.send(SIGTERM);  // mpirun passes it on
  const Outcome outcome = program.wait();
  unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
  EXPECT_NE(outcome.status, 0);
  const auto last = latest_checkpoint(folder_ / "run");
  ASSERT_TRUE(last) << outcome.out << outcome.err;
  verify_checkpoint(*last);
}

TEST_F(MpiTrain, AKilledRankEndsAllAndLeavesTheLastCheckpoint) {
  // Each rank says which process it is.
  const Arguments command{
      "-np", "3",         "sh", "-c", "echo $$ > pid.$OMPI_COMM_WORLD_RANK; exec \"$@\"",
      "sh",  app("train")};
  Program program(LLMC_MPIRUN,
                  command + options() +
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

}  // namespace
}  // namespace llmc
