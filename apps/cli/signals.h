#pragma once

#include <atomic>

namespace llmc::cli {

/// From now on SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 (which mpirun passes on without killing
/// anybody) are only noted, once (and said so on a terminal): a second one ends the process at
/// once, with the status a shell expects. SIGHUP is noted too, unless it was ignored; as a lost
/// terminal may send it several times, and SIGTERM with it, it never counts as first or second.
/// Broken pipes become errors of the stream. The value is 0, then the number of a signal.
const std::atomic<int>& watch_signals();

}  // namespace llmc::cli
