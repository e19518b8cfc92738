#pragma once

#include <atomic>

namespace llmc::cli {

/// From now on SIGINT and SIGTERM are only noted, once (and said so on a terminal): a second one
/// ends the process at once, with the status a shell expects. Broken pipes become errors of the
/// stream. The value is 0, then the number of the first signal.
const std::atomic<int>& watch_signals();

}  // namespace llmc::cli
