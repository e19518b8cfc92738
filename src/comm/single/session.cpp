#include "comm/mpi_session.h"
#include "llmc/core/error.h"

namespace llmc {

std::unique_ptr<MpiSession> MpiSession::open() {
  fail(ErrorKind::kConfig, "comm", "comm_init: expected a build with MPI for mpi, got one without");
}

bool has_mpi() {
  return false;
}

}  // namespace llmc
