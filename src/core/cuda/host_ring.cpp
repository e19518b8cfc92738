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
constexpr std::size_t kAlignment = 256;

}  // namespace

HostRing::HostRing() {
  check(cudaMallocHost(reinterpret_cast<void**>(&memory_), kRingBytes), "pinned host memory");
}

HostRing::~HostRing() {
  for (const Piece& piece : pieces_) {
    cudaEventSynchronize(piece.read);
    cudaEventDestroy(piece.read);
  }
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
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
  const cudaEvent_t read = take_event();
  check(cudaEventRecord(read, stream), "event");
  pieces_.push_back({next_, next_ + room, read});
  next_ += room;
}

/// Waits for copies out of [begin, end), and forgets those that are done.
void HostRing::make_room(std::size_t begin, std::size_t end) {
  const auto overlaps = [&](const Piece& p) { return p.begin < end && begin < p.end; };
  const auto last = std::find_if(pieces_.rbegin(), pieces_.rend(), overlaps);
  auto must_wait = static_cast<std::size_t>(pieces_.rend() - last);
  while (!pieces_.empty()) {
    const Piece oldest = pieces_.front();
    const cudaError_t state = cudaEventQuery(oldest.read);
    if (state == cudaErrorNotReady) {
      if (must_wait == 0) return;
      wait(oldest.read);
    } else {
      check(state, "copy to the device");
    }
    pieces_.pop_front();
    events_.push_back(oldest.read);
    if (must_wait > 0) --must_wait;
  }
}

cudaEvent_t HostRing::take_event() {
  cudaEvent_t event = nullptr;
  if (events_.empty()) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  } else {
    event = events_.back();
    events_.pop_back();
  }
  return event;
}

}  // namespace llmc::cuda
