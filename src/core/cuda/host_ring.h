#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

namespace llmc::cuda {

/// Pinned memory that host data passes through on its way to the device, so that a copy is queued
/// without waiting for the device. Used as a ring: only a copy that would overwrite data not yet
/// read waits, for that data. Nothing is allocated after construction.
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
  Piece& in_flight(std::size_t i) { return pieces_[(first_ + i) % pieces_.size()]; }
  void copy_piece(cudaStream_t stream, std::byte* dst, const std::byte* src, std::size_t bytes);
  void make_room(std::size_t begin, std::size_t end);

  std::byte* memory_ = nullptr;
  std::size_t next_ = 0;
  std::vector<Piece> pieces_;  ///< a ring too: `count_` of them are in flight, oldest at `first_`
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace llmc::cuda
