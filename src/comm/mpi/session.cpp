#include "comm/mpi/session.h"

#include "comm/mpi/mpi_check.h"

namespace llmc {

WorldSession::WorldSession() {
  int started = 0, ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) {
    fail(ErrorKind::kComm, "comm",
         "expected MPI, got a process in which it has ended already; it can be started only once");
  }
  MPI_Initialized(&started);
  if (started == 0) {
    int level = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    owner_ = true;
  }
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world_, &rank_);
  MPI_Comm_size(world_, &size_);
}

WorldSession::~WorldSession() {
  if (abandoned_) return;
  MPI_Comm_free(&world_);
  if (owner_) MPI_Finalize();
}

std::string WorldSession::broadcast(std::string bytes) {
  int length = static_cast<int>(bytes.size());
  check_mpi(MPI_Bcast(&length, 1, MPI_INT, 0, world_), "MPI_Bcast");
  bytes.resize(static_cast<std::size_t>(length));
  check_mpi(MPI_Bcast(bytes.data(), length, MPI_BYTE, 0, world_), "MPI_Bcast");
  return bytes;
}

std::unique_ptr<MpiSession> MpiSession::open() {
  return std::make_unique<WorldSession>();
}

bool has_mpi() {
  return true;
}

}  // namespace llmc
