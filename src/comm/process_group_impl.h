#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "comm/mpi_session.h"
#include "comm/watch.h"
#include "llmc/comm/process_group.h"

namespace llmc {

struct ProcessGroup::Impl {
  Impl(std::string_view how, Star star, double silence_s, std::unique_ptr<MpiSession> mpi = {});
  ~Impl();

  std::string method;
  int rank, size, local_rank, local_size;
  int errors;  ///< under way when the group was made
  std::unique_ptr<MpiSession> session;
  Watch watch;
};

/// How the communicator of this build can be started, beside "alone": for example "mpi".
std::string_view start_up_methods();

}  // namespace llmc
