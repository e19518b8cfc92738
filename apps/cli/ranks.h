#pragma once

#include <exception>
#include <memory>
#include <string_view>

#include "llmc/comm/process_group.h"
#include "llmc/train/training_run.h"

namespace llmc::cli {

/// ProcessGroup::join for the app of this name, which ends with a message and kFailed where join
/// does not return a little after the deadline: MPI waits without end for a process that does not
/// start it.
std::shared_ptr<ProcessGroup> join(std::string_view app, const StartUp& options);

/// What `work` returns. Where it throws, the other ranks are told why, so that none waits.
template <class Run>
auto or_give_up(ProcessGroup& processes, const Run& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    processes.give_up(error);
    throw;
  }
}

/// Where this process computes.
RankPlace place_of(const ProcessGroup& processes);

/// From now on, what the library logs is printed by rank 0 of this app; by others, their errors
/// alone. One process prints as ever.
void log_as_one(std::string_view app, const ProcessGroup& processes);

}  // namespace llmc::cli
