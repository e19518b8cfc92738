#include "comm/launcher.h"

#include <charconv>
#include <cstring>
#include <utility>

#include "llmc/core/error.h"

namespace llmc {
namespace {

/// The variable as a number; `missing` where it is not set.
int number(const Environment& environment, const char* name, int missing) {
  const char* const text = environment(name);
  if (text == nullptr) return missing;
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  if (error != std::errc() || rest != end || value < 0) {
    fail(ErrorKind::kConfig, "comm", name, ": expected a number in this environment variable, got ",
         text);
  }
  return value;
}

std::string text(const Environment& environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr ? "" : value;
}

/// The first host of a SLURM list such as "gpu[003-006,9],login1".
std::string first_host(std::string_view list) {
  const std::size_t bracket = list.find_first_of("[,");
  std::string host(list.substr(0, bracket));
  if (bracket == list.npos || list[bracket] == ',') return host;
  list.remove_prefix(bracket + 1);
  host += list.substr(0, list.find_first_of("-,]"));
  const std::size_t close = list.find(']');
  if (close != list.npos) {
    const std::string_view rest = list.substr(close + 1);
    host += rest.substr(0, rest.find(','));
  }
  return host;
}

/// A port that depends on the job, so that two jobs on a machine seldom choose the same.
int port_of_job(const Environment& environment) {
  return 20000 + (number(environment, "SLURM_JOB_ID", 0) * 16 +
                  number(environment, "SLURM_STEP_ID", 0) % 16) %
                     12000;
}

void expect_rank(const StartUp& options, std::string_view method) {
  if (options.size < 1) {
    fail(ErrorKind::kConfig, "comm",
         "comm_size: expected the number of processes for comm_init = ", method,
         ", got none, and none from a launcher");
  }
  if (options.rank < 0 || options.rank >= options.size) {
    fail(ErrorKind::kConfig, "comm", "comm_rank: expected 0 to ", options.size - 1,
         " for comm_init = ", method, ", got ",
         options.rank < 0 ? "none" : std::to_string(options.rank));
  }
}

/// "alone" or one of the methods.
std::string start_up_method(const StartUp& options, const Launched& launched,
                            std::string_view methods) {
  std::string method = options.method;
  if (method == "auto") {
    const bool several = launched.size > 1 || options.size > 1;
    const bool by_mpi = launched.speaks_mpi && has_word(methods, "mpi");
    if (!options.file.empty()) {
      method = "file";
    } else if (!options.address.empty() || (several && !by_mpi)) {
      method = "tcp";
    } else {
      method = several ? "mpi" : "alone";
    }
  }
  if (method != "alone" && !has_word(methods, method)) {
    fail(ErrorKind::kConfig, "comm", "comm_init: expected auto or one of: ", methods, "; got ",
         method, ", which this build does not have");
  }
  return method;
}

/// What a launcher says, which has set `size` and must have set the variable of the rank.
Launched read_ranks(const Environment& environment, std::string by, const char* rank_name,
                    int size) {
  Launched launched{std::move(by), number(environment, rank_name, -1), size};
  if (size > 0 && (launched.rank < 0 || launched.rank >= size)) {
    fail(ErrorKind::kConfig, "comm", rank_name, ": expected ", launched.by,
         " to set this environment variable to a rank of 0 to ", size - 1, ", got ",
         launched.rank < 0 ? "none" : std::to_string(launched.rank));
  }
  return launched;
}

}  // namespace

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t space = list.find(' ');
    if (list.substr(0, space) == word) return true;
    if (space == list.npos) return false;
    list.remove_prefix(space + 1);
  }
  return false;
}

Launched read_launcher(const Environment& environment) {
  Launched launched;
  if (environment("OMPI_COMM_WORLD_SIZE") != nullptr) {
    launched = read_ranks(environment, "mpirun", "OMPI_COMM_WORLD_RANK",
                          number(environment, "OMPI_COMM_WORLD_SIZE", 0));
    launched.speaks_mpi = true;
    launched.job = text(environment, "PMIX_NAMESPACE");
  } else if (environment("TORCHELASTIC_RUN_ID") != nullptr ||
             (environment("WORLD_SIZE") != nullptr && environment("RANK") != nullptr)) {
    launched = read_ranks(environment, "torchrun", "RANK", number(environment, "WORLD_SIZE", 0));
    launched.address = text(environment, "MASTER_ADDR");
    launched.port = number(environment, "MASTER_PORT", 0);
    launched.job =
        concat(text(environment, "TORCHELASTIC_RUN_ID"), "/", launched.address, "/", launched.port);
    // The launcher itself listens there.
    if (environment("TORCHELASTIC_RUN_ID") != nullptr && launched.port > 0) ++launched.port;
  } else if (environment("PMI_SIZE") != nullptr) {
    launched = read_ranks(environment, environment("SLURM_PROCID") != nullptr ? "srun" : "mpirun",
                          "PMI_RANK", number(environment, "PMI_SIZE", 0));
    launched.speaks_mpi = true;
  } else if (environment("SLURM_PROCID") != nullptr && environment("SLURM_STEP_ID") != nullptr) {
    // Without a step this is the batch script, not one of its tasks. PMIx announces itself by its
    // rank alone.
    launched = read_ranks(
        environment, "srun", "SLURM_PROCID",
        number(environment, "SLURM_STEP_NUM_TASKS", number(environment, "SLURM_NTASKS", 1)));
    launched.speaks_mpi = environment("PMIX_RANK") != nullptr;
  }
  if (launched.by == "srun") {
    const char* const nodes = environment("SLURM_STEP_NODELIST") != nullptr ? "SLURM_STEP_NODELIST"
                                                                            : "SLURM_JOB_NODELIST";
    launched.address = first_host(text(environment, nodes));
    launched.port = port_of_job(environment);
    launched.job =
        concat(text(environment, "SLURM_JOB_ID"), ".", text(environment, "SLURM_STEP_ID"));
  }
  return launched;
}

StartUp resolve_start_up(const StartUp& options, const Launched& launched,
                         const Environment& environment, std::string_view methods) {
  StartUp result = options;
  result.method = start_up_method(options, launched, methods);
  const std::string& method = result.method;
  if (method == "alone" || method == "mpi") return result;
  if (result.rank < 0) result.rank = launched.rank;
  if (result.size == 0) result.size = launched.size;
  expect_rank(result, method);
  if (result.port == 0) result.port = launched.port > 0 ? launched.port : StartUp::kDefaultPort;
  if (result.token.empty()) result.token = text(environment, "LLMC_COMM_TOKEN");
  if (result.token.empty()) result.token = launched.job;
  if (method == "tcp") {
    if (result.address.empty()) result.address = launched.address;
    if (result.address.empty()) {
      fail(ErrorKind::kConfig, "comm",
           "comm_address: expected the host of rank 0 for comm_init = tcp, got none, and none from "
           "a launcher");
    }
    if (result.token.empty()) {
      fail(ErrorKind::kConfig, "comm",
           "comm_token: expected a word that all ranks of this run share, got none, and no job "
           "number from a launcher; set LLMC_COMM_TOKEN to the same word for all");
    }
  } else if (result.file.empty()) {
    fail(ErrorKind::kConfig, "comm",
         "comm_file: expected a path that all ranks see for comm_init = file, got none");
  }
  return result;
}

}  // namespace llmc
