#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "llmc/comm/process_group.h"

namespace llmc {

/// Reads an environment variable; null where it is not set.
using Environment = std::function<const char*(const char* name)>;

/// What the environment says of who started this process.
struct Launched {
  std::string by = {};  ///< "mpirun", "srun" or "torchrun"; empty: nobody who says so
  int rank = -1;
  int size = 0;
  bool speaks_mpi = false;   ///< MPI started here finds the other processes
  std::string address = {};  ///< where rank 0 runs
  int port = 0;
  std::string job = {};  ///< what no other run has at the same time
};

/// An environment that contradicts itself is a config error.
Launched read_launcher(const Environment& environment);

/// The options with the launcher's rank, size, address, port and token where they have none, and
/// with "auto" resolved to "alone" or one of `methods`, those of the build (start_up_methods).
/// Other methods and options that make no sense are config errors.
StartUp resolve_start_up(const StartUp& options, const Launched& launched,
                         const Environment& environment, std::string_view methods);

/// Whether this is one of the list's words, between which there are spaces.
bool has_word(std::string_view list, std::string_view word);

}  // namespace llmc
