#pragma once

#include <memory>
#include <string>

namespace llmc {

/// MPI for as long as this lives: started here, unless somebody has, and ended here if it was
/// started here.
class MpiSession {
 public:
  /// Where the build has no MPI, or MPI has been ended before, this is an error.
  static std::unique_ptr<MpiSession> open();
  virtual ~MpiSession() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The bytes of rank 0, on all ranks.
  virtual std::string broadcast(std::string bytes) = 0;
  /// A rank has failed, so MPI's end, which needs all ranks, must not be waited for.
  virtual void abandon() = 0;
};

/// Whether the build has MPI.
bool has_mpi();

}  // namespace llmc
