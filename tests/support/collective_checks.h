#pragma once

#include "llmc/comm/communicator.h"

namespace llmc::testing {

/// Every rank calls this: compares all collectives with arithmetic, for sizes that nothing divides
/// and for none, in all dtypes, and the ranks' bits with each other. Failures are GoogleTest's.
void check_collectives(Communicator& comm, const Device& device);

}  // namespace llmc::testing
