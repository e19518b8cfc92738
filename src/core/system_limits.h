#pragma once

#include <cstddef>
#include <filesystem>

namespace llmc {

// What the operating system lets this process use: the machine's memory and processors, or less
// where control groups (containers, batch systems) limit them. `root` stands for "/" in tests.

/// Bytes that can be allocated without pushing others out of memory.
std::size_t available_memory(const std::filesystem::path& root = "/");

/// Processors that the process may run on, at least 1.
int usable_processors(const std::filesystem::path& root = "/");

constexpr int kMaxThreads = 1024;
/// The threads to use where the caller names no number: OMP_NUM_THREADS if it is set, else the
/// usable processors; of several processes on this machine, each gets its part of them, unless each
/// has been bound to processors of its own.
int default_threads(int processes = 1);

}  // namespace llmc
