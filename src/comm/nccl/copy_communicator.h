#pragma once

#include <cstddef>
#include <memory>

#include "llmc/comm/communicator.h"

namespace llmc {

/// Ranks whose GPUs write into each other's memory. Null, on all of them alike, where they do not
/// share one machine or their GPUs cannot do that: then a comm error if the group's transport is
/// "copy". All ranks must call it.
///
/// NCCL exchanges by kernels, which take processors away from the products that run beside them and
/// so slow these down by as much as the exchange takes. Here the GPUs' copy engines do the moving;
/// a short kernel per tensor adds what has arrived, in order of rank.
std::unique_ptr<Communicator> copy_communicator(const Device& device,
                                                const std::shared_ptr<ProcessGroup>& processes);

/// What it takes of each GPU's memory; nothing where there are too few or too many ranks for it.
std::size_t copy_communicator_memory(int ranks);

}  // namespace llmc
