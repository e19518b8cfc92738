#pragma once

#include "llmc/comm/communicator.h"

namespace llmc::testing {

/// Of a program that llmc_add_mpi_test starts as several ranks: what joins them.
Communicator& ranks();
const Device& rank_device();

}  // namespace llmc::testing
