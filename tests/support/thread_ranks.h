#pragma once

#include <functional>
#include <memory>

#include "llmc/comm/communicator.h"

namespace llmc::testing {

/// Runs `body` on `ranks` threads that are the ranks of one Communicator, and waits for all. Sums
/// are added in order of rank, as between processes. Tensors may be on any backend; every thread
/// must use a Stream of its own. Where a body throws, the others' collectives throw a comm error,
/// and the body's own error is thrown again here.
void run_thread_ranks(int ranks, const std::function<void(Communicator& comm)>& body);

}  // namespace llmc::testing
