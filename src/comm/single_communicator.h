#pragma once

#include <memory>

#include "llmc/comm/communicator.h"

namespace llmc {

/// One process on its own: sums are what they are, and slices are the whole.
std::unique_ptr<Communicator> single_communicator();

}  // namespace llmc
