#pragma once

#include <cstddef>
#include <filesystem>

namespace llmc::cpu {

// What the operating system lets this process use: the machine's memory and processors, or less
// where control groups (containers, batch systems) limit them. `root` stands for "/" in tests.

/// Bytes that can be allocated without pushing others out of memory.
std::size_t available_memory(const std::filesystem::path& root = "/");

/// Processors that the process may run on, at least 1.
int usable_processors(const std::filesystem::path& root = "/");

}  // namespace llmc::cpu
