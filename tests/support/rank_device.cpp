#include "support/rank_device.h"

#include <cstdlib>

#include "llmc/core/error.h"

namespace llmc::testing {

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
