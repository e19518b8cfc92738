#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace llmc::cuda {

/// How often the process has waited for a device or asked one for memory, and for how much: a step
/// in steady state must do neither. Every such call of the library goes through the functions that
/// count.
struct Counters {
  std::atomic<std::int64_t> waits{0};
  std::atomic<std::int64_t> allocations{0};
  std::atomic<std::size_t> allocated_bytes{0};
};
Counters& counters();

/// Waits for all work before an event, or of a stream. Throws what that work failed with.
void wait(cudaEvent_t event);
void wait(cudaStream_t stream);

}  // namespace llmc::cuda
