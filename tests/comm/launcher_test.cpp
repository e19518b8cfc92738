#include "comm/launcher.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "comm/process_group_impl.h"
#include "llmc/core/error.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;
using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

Launched launched_by(const Variables& variables) {
  return read_launcher(environment(variables));
}

StartUp resolved(const StartUp& options, const Variables& variables, bool has_mpi = false) {
  const Environment from = environment(variables);
  return resolve_start_up(options, read_launcher(from), from,
                          has_mpi ? "mpi tcp file" : "tcp file");
}

const Variables kSrun = {{"SLURM_PROCID", "5"},  {"SLURM_STEP_NUM_TASKS", "16"},
                         {"SLURM_NTASKS", "32"}, {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NODELIST", "gpu[003-006,9],login1"}};
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "head"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "abc"}};

TEST(Launcher, NobodyIsOneProcess) {
  EXPECT_EQ(launched_by({}).size, 0);
  EXPECT_EQ(resolved({}, {}).method, "alone");
  EXPECT_EQ(resolved({}, {}, true).method, "alone");
  // The script of a batch job, which is none of its tasks.
  EXPECT_EQ(launched_by({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).size, 0);
}

TEST(Launcher, MpirunNeedsNothingWhereTheBuildHasMpi) {
  const Variables variables = {
      {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"PMIX_NAMESPACE", "9"}};
  EXPECT_EQ(resolved({}, variables, true).method, "mpi");
  const StartUp start = resolved({.address = "head"}, variables);
  EXPECT_EQ(start.method, "tcp");
  EXPECT_EQ(start.rank, 1);
  EXPECT_EQ(start.size, 3);
  EXPECT_EQ(start.token, "9");
  EXPECT_EQ(start.port, StartUp::kDefaultPort);
  EXPECT_EQ(launched_by({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}).rank, 2);
}

TEST(Launcher, SrunGivesHostPortAndToken) {
  const StartUp start = resolved({}, kSrun);
  EXPECT_EQ(start.method, "tcp");
  EXPECT_EQ(start.rank, 5);
  EXPECT_EQ(start.size, 16);
  EXPECT_EQ(start.address, "gpu003");
  EXPECT_EQ(start.token, "77.2");
  EXPECT_GE(start.port, 20000);
  EXPECT_LT(start.port, 32000);
  Variables with_pmix = kSrun;
  with_pmix["PMIX_RANK"] = "5";
  EXPECT_EQ(resolved({}, with_pmix, true).method, "mpi");
  EXPECT_EQ(resolved({}, with_pmix, false).method, "tcp");
  Variables one_host = kSrun;
  one_host["SLURM_STEP_NODELIST"] = "n[1,3].rack-2,n9";
  EXPECT_EQ(resolved({}, one_host).address, "n1.rack-2");
  one_host["SLURM_STEP_NODELIST"] = "a-1,b";
  EXPECT_EQ(resolved({}, one_host).address, "a-1");
}

TEST(Launcher, TorchrunKeepsItsOwnPort) {
  const StartUp start = resolved({}, kTorchrun);
  EXPECT_EQ(start.method, "tcp");
  EXPECT_EQ(start.rank, 3);
  EXPECT_EQ(start.size, 4);
  EXPECT_EQ(start.address, "head");
  EXPECT_EQ(start.port, 29501);
  EXPECT_FALSE(start.token.empty());
}

TEST(Launcher, OptionsCountMoreThanTheEnvironment) {
  Variables variables = kTorchrun;
  variables["LLMC_COMM_TOKEN"] = "from outside";
  StartUp options{.address = "other", .port = 7, .rank = 1, .size = 2, .token = "word"};
  const StartUp start = resolved(options, variables);
  EXPECT_EQ(start.address, "other");
  EXPECT_EQ(start.port, 7);
  EXPECT_EQ(start.rank, 1);
  EXPECT_EQ(start.size, 2);
  EXPECT_EQ(start.token, "word");
  options.token.clear();
  EXPECT_EQ(resolved(options, variables).token, "from outside");
  EXPECT_EQ(resolved({.file = "/x"}, variables).method, "file");
}

TEST(Launcher, WhatIsMissingIsNamed) {
  const auto refused = [](const char* part, const StartUp& options, const Variables& variables) {
    expect_error(ErrorKind::kConfig, part, [&] { resolved(options, variables); });
  };
  refused("comm_size: expected", {.method = "tcp"}, {});
  refused("comm_rank: expected 0 to 1", {.method = "tcp", .size = 2}, {});
  refused("comm_rank: expected 0 to 1", {.method = "tcp", .rank = 2, .size = 2}, {});
  refused("comm_address: expected", {.method = "tcp", .rank = 0, .size = 2}, {});
  refused("comm_token: expected", {.method = "tcp", .address = "h", .rank = 0, .size = 2}, {});
  refused("comm_file: expected", {.method = "file", .rank = 0, .size = 2}, {});
  refused("comm_init: expected auto", {.method = "pigeon"}, {});
  refused("PMI_RANK: expected a number", {}, {{"PMI_RANK", "x"}, {"PMI_SIZE", "4"}});
  refused("a rank of 0 to 3, got 4", {}, {{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}});
  refused("OMPI_COMM_WORLD_RANK: expected mpirun to set", {}, {{"OMPI_COMM_WORLD_SIZE", "2"}});
  refused("a rank of 0 to 3, got none", {}, {{"WORLD_SIZE", "4"}, {"TORCHELASTIC_RUN_ID", "a"}});
}

TEST(Launcher, AProcessOnItsOwnIsAGroup) {
  const auto group = ProcessGroup::join();
  EXPECT_EQ(group->method(), "alone");
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->local_size(), 1);
  EXPECT_EQ(group->share("word"), "word");
  group->check();
  EXPECT_EQ(choose_gpu(*group, 8), 0);
  expect_error(ErrorKind::kConfig, "a GPU for each", [&] { choose_gpu(*group, 0); });
}

TEST(Launcher, WhatTheBuildLacksIsRefused) {
  const StartUp by_tcp{.method = "tcp", .address = "h", .rank = 0, .size = 2, .token = "t"};
  if (!start_up_methods().empty()) {
    const std::string lacking = has_mpi() ? "pigeon" : "mpi";
    expect_error(ErrorKind::kConfig, concat("got ", lacking),
                 [&] { ProcessGroup::join({.method = lacking}); });
  }
  if (start_up_methods() == "mpi") {
    expect_error(ErrorKind::kConfig, "comm_init: expected auto or one of: mpi; got tcp",
                 [&] { ProcessGroup::join({.method = "tcp"}); });
  }
  if (!start_up_methods().empty()) return;
  expect_error(ErrorKind::kConfig, "cpu-mpi", [&] { ProcessGroup::join(by_tcp); });
  expect_error(ErrorKind::kConfig, "cpu-mpi", [] { ProcessGroup::join({.size = 2}); });
  ::setenv("PMI_SIZE", "2", 1);
  ::setenv("PMI_RANK", "1", 1);
  expect_error(ErrorKind::kConfig, "got 2 started by mpirun; this build trains in one",
               [] { ProcessGroup::join(); });
  ::unsetenv("PMI_SIZE");
  ::unsetenv("PMI_RANK");
}

}  // namespace
}  // namespace llmc
