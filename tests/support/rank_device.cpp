#include "support/rank_device.h"

#include <cstdlib>

#include "llmc/core/error.h"

namespace llmc::testing {

StartUp test_start_up() {
  StartUp start;
  start.deadline_s = 60;
  if (const char* transport = std::getenv("LLMC_TEST_TRANSPORT")) start.transport = transport;
  return start;
}

Device open_rank_device(const ProcessGroup& processes) {
  DeviceOptions options{.threads = 1};
  const int gpus = visible_gpus();
  if (gpus > 0) options.gpu = processes.local_rank() % gpus;
  if (gpus > 0 && gpus < processes.local_size()) {
    // NCCL takes two ranks of one machine on one GPU for a mistake.
    setenv("NCCL_HOSTID", concat("rank_", processes.rank()).c_str(), 1);
  }
  return Device::open(options);
}

}  // namespace llmc::testing
