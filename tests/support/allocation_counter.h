#pragma once

namespace llmc::testing {

/// Calls of operator new in this program so far; link support/allocation_counter.cpp.
long allocations();

}  // namespace llmc::testing
