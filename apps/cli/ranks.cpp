#include "cli/ranks.h"

#include <iostream>

#include "llmc/core/device.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc::cli {

RankPlace place_of(const ProcessGroup& processes) {
  const int gpus = visible_gpus();
  const bool shares = processes.size() > 1 && backend_name() != "cpu";
  return {shares ? choose_gpu(processes, gpus) : 0, processes.local_size()};
}

void log_as_one(const ProcessGroup& processes) {
  const int rank = processes.rank();
  if (rank == 0) return;
  set_log_sink([rank](LogLevel level, std::string_view message) {
    if (level == LogLevel::kError) std::cerr << concat("rank ", rank, ": ", message, "\n");
  });
}

}  // namespace llmc::cli
