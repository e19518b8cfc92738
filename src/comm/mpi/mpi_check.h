#pragma once

#include <mpi.h>

#include <string_view>

#include "llmc/core/error.h"

namespace llmc {

/// Throws a comm error with MPI's own words for a call that failed.
inline void check_mpi(int status, std::string_view what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail(ErrorKind::kComm, "comm", what, ": ", text);
}

}  // namespace llmc
