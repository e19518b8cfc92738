// failing_rank WAY RANK: this rank ends by kill, throw or leave while the others sum, or all sum to
// the end and it stops before that of MPI or stands or hangs in it.

#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <thread>

#include "llmc/comm/communicator.h"
#include "llmc/core/error.h"
#include "support/rank_device.h"

namespace {

using namespace llmc;  // NOLINT: a program of its own

std::string_view in_finalize;

void sum_until(std::string_view end, int failing) {
  StartUp start = testing::test_start_up();
  if (end == "stop" || end == "stand" || end == "hang") start.silence_s = 5;
  const auto processes = ProcessGroup::join(start);
  const Device device = testing::open_rank_device(*processes);
  const auto comm = Communicator::open(device, processes);
  Stream stream(device);
  const Buffer buffer(device, 40000);
  const Tensor values(buffer.data(), DType::kF32, {10000});
  for (int step = 0; step < 1000; ++step) {
    if (step == 20 && comm->rank() == failing) {
      if (end == "kill") ::kill(::getpid(), SIGKILL);
      if (end == "throw") fail(ErrorKind::kInput, "test", "expected luck");
      if (end == "leave") return;
    }
    comm->all_reduce(stream, values);
    stream.synchronize();
  }
  if (comm->rank() != failing) return;
  if (end == "stop") ::raise(SIGSTOP);
  in_finalize = end;
}

}  // namespace

/// In place of MPI's own, which is PMPI_Finalize.
int MPI_Finalize() {
  if (in_finalize == "stand") ::raise(SIGSTOP);
  while (in_finalize == "hang") ::pause();
  return PMPI_Finalize();
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    sum_until(argv[1], std::atoi(argv[2]));
  } catch (const Error& error) {
    std::cerr << error.what() << std::endl;
    // mpirun ends all ranks when one has failed; they shall have their say first.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return 1;
  }
  return 0;
}
