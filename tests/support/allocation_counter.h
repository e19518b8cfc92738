#pragma once

#include <cstddef>
#include <cstdint>

namespace llmc::testing {

// A test program that links allocation_counter.cpp counts what it asks operator new for.

/// Calls of operator new so far, from any thread.
std::int64_t allocations();
/// Bytes of device memory asked for so far. On the CPU, what operator new is asked for with an
/// alignment, as Buffers do.
std::size_t device_bytes();

}  // namespace llmc::testing
