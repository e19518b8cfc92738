#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "comm/mpi_session.h"
#include "comm/watch.h"
#include "llmc/comm/process_group.h"

namespace llmc {

struct ProcessGroup::Impl {
  Impl(std::string_view how, Star star, const StartUp& options,
       std::unique_ptr<MpiSession> mpi = {});
  ~Impl();

  std::string method, transport;
  int rank, size, local_rank, local_size;
  int errors;  ///< under way when the group was made
  std::unique_ptr<MpiSession> session;
  /// What other ranks may reach until they have left.
  std::shared_ptr<void> reached;
  Watch watch;
};

/// How the communicator of this build can be started, beside "alone": for example "mpi".
std::string_view start_up_methods();
/// What StartUp::transport may be in this build.
std::string_view transports();

}  // namespace llmc
