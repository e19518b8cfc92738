#pragma once

#include <mpi.h>

#include <string>

#include "comm/mpi_session.h"

namespace llmc {

/// The session that MpiSession::open makes.
class WorldSession : public MpiSession {
 public:
  WorldSession();
  ~WorldSession() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string broadcast(std::string bytes) override;
  void abandon() override { abandoned_ = true; }

  /// All processes, apart from what others send to each other. Errors come back to the caller.
  MPI_Comm world() const { return world_; }

 private:
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  bool owner_ = false, abandoned_ = false;
};

}  // namespace llmc
