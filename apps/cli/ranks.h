#pragma once

#include "llmc/comm/process_group.h"
#include "llmc/train/training_run.h"

namespace llmc::cli {

/// Where this process computes.
RankPlace place_of(const ProcessGroup& processes);

/// From now on, what the library logs is printed by rank 0; by others, their errors alone.
void log_as_one(const ProcessGroup& processes);

}  // namespace llmc::cli
