#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "llmc/comm/communicator.h"

namespace llmc {

/// What a rank believes, under a name for messages.
struct Belief {
  std::string name;
  std::string value;
};

/// Throws a config error, the same on every rank, that names the first rank which does not believe
/// what rank 0 does, and where they differ. All ranks pass the same names.
void expect_agreement(Communicator& comm, Stream& stream, std::span<const Belief> beliefs);

}  // namespace llmc
