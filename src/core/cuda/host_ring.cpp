#include "core/cuda/host_ring.h"

#include <algorithm>
#include <cstring>

#include "core/cuda/counters.h"
#include "core/cuda/device_impl.h"

namespace llmc::cuda {
namespace {

/// Room for the tokens of several steps, so that a step never waits here.
constexpr std::size_t kRingBytes = std::size_t{32} << 20;
constexpr std::size_t kMostPiece = kRingBytes / 8;
/// Copies in flight at most; a step makes a few for each micro-batch.
constexpr std::size_t kMostPieces = 1024;
constexpr std::size_t kAlignment = 256;

}  // namespace

HostRing::HostRing() : pieces_(kMostPieces) {
  check(cudaMallocHost(reinterpret_cast<void**>(&memory_), kRingBytes), "pinned host memory");
  for (Piece& piece : pieces_) {
    check(cudaEventCreateWithFlags(&piece.read, cudaEventDisableTiming), "event");
  }
}

HostRing::~HostRing() {
  for (std::size_t i = 0; i < count_; ++i) cudaEventSynchronize(in_flight(i).read);
  for (const Piece& piece : pieces_) cudaEventDestroy(piece.read);
  cudaFreeHost(memory_);
}

void HostRing::copy(cudaStream_t stream, void* dst, const void* src, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  for (std::size_t done = 0; done < bytes; done += kMostPiece) {
    copy_piece(stream, to + done, from + done, std::min(kMostPiece, bytes - done));
  }
}

void HostRing::copy_piece(cudaStream_t stream, std::byte* dst, const std::byte* src,
                          std::size_t bytes) {
  const std::size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (next_ + room > kRingBytes) next_ = 0;
  make_room(next_, next_ + room);
  std::memcpy(memory_ + next_, src, bytes);
  check(cudaMemcpyAsync(dst, memory_ + next_, bytes, cudaMemcpyHostToDevice, stream),
        "copy to the device");
  Piece& piece = in_flight(count_);
  check(cudaEventRecord(piece.read, stream), "event");
  piece.begin = next_;
  piece.end = next_ + room;
  ++count_;
  next_ += room;
}

/// Waits for copies out of [begin, end), or for one where too many are in flight, and forgets those
/// that are done.
void HostRing::make_room(std::size_t begin, std::size_t end) {
  std::size_t must_wait = count_;  // up to the newest piece that overlaps
  while (must_wait > 0) {
    const Piece& piece = in_flight(must_wait - 1);
    if (piece.begin < end && begin < piece.end) break;
    --must_wait;
  }
  if (count_ == pieces_.size()) must_wait = std::max<std::size_t>(must_wait, 1);
  while (count_ > 0) {
    const cudaEvent_t oldest = in_flight(0).read;
    const cudaError_t state = cudaEventQuery(oldest);
    if (state == cudaErrorNotReady) {
      if (must_wait == 0) return;
      wait(oldest);
    } else {
      check(state, "copy to the device");
    }
    first_ = (first_ + 1) % pieces_.size();
    --count_;
    if (must_wait > 0) --must_wait;
  }
}

}  // namespace llmc::cuda
