#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu/isa.h"
#include "llmc/core/device.h"

namespace llmc {

namespace cpu {

/// Workspace of each thread of a Stream, for packed panels and attention blocks.
inline constexpr std::size_t kThreadWorkspaceBytes = std::size_t{4} << 20;
/// Workspace of a Stream that all its threads share, for packed panels.
inline constexpr std::size_t kSharedWorkspaceBytes = std::size_t{16} << 20;

}  // namespace cpu

struct Device::Impl {
  int threads = 1;
  cpu::Isa isa = cpu::Isa::kPortable;
};

struct Stream::Impl {
  /// Without `products`, it has no workspace.
  explicit Impl(const Device& d, bool products = true);

  Device device;
  int threads;
  cpu::Isa isa;
  Buffer workspace;
  /// kSharedWorkspaceBytes that the team shares within one op.
  Buffer shared_workspace;

  /// kThreadWorkspaceBytes of memory that only the given thread of the team uses, and only within
  /// one op.
  void* thread_workspace(int thread) const {
    return static_cast<std::byte*>(workspace.data()) +
           static_cast<std::size_t>(thread) * cpu::kThreadWorkspaceBytes;
  }
};

}  // namespace llmc
