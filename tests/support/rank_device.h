#pragma once

#include "llmc/comm/process_group.h"
#include "llmc/core/device.h"

namespace llmc::testing {

/// With the transport that the environment variable LLMC_TEST_TRANSPORT names, else "auto".
StartUp test_start_up();

/// The device of a rank of a test: a GPU of its own where there are enough, else a shared one. Must
/// come before the rank's Communicator. CPU: one thread.
Device open_rank_device(const ProcessGroup& processes);

}  // namespace llmc::testing
