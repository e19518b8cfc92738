#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <deque>
#include <vector>

namespace llmc::cuda {

/// Pinned memory that host data passes through on its way to the device, so that a copy is queued
/// without waiting for the device. Used as a ring: only a copy that would overwrite data not yet
/// read waits, for that data.
class HostRing {
 public:
  HostRing();
  ~HostRing();
  HostRing(const HostRing&) = delete;
  HostRing& operator=(const HostRing&) = delete;

  /// Queues a copy of `bytes` bytes to device memory; src may be reused on return.
  void copy(cudaStream_t stream, void* dst, const void* src, std::size_t bytes);

 private:
  struct Piece {
    std::size_t begin, end;
    cudaEvent_t read;  ///< recorded behind the copy
  };
  void copy_piece(cudaStream_t stream, std::byte* dst, const std::byte* src, std::size_t bytes);
  void make_room(std::size_t begin, std::size_t end);
  cudaEvent_t take_event();

  std::byte* memory_ = nullptr;
  std::size_t next_ = 0;
  std::deque<Piece> pieces_;         ///< oldest first
  std::vector<cudaEvent_t> events_;  ///< not in use
};

}  // namespace llmc::cuda
