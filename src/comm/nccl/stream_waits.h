#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

namespace llmc {

/// Waits for flags in device memory as operations of a stream: no processor of the GPU spins
/// meanwhile.
class StreamWaits {
 public:
  /// Throws a device error where the driver has no such operations.
  StreamWaits();

  /// Until the flag has one of these bits.
  void add(const std::uint32_t* flag /*device*/, std::uint32_t bits);
  /// Queues the waits that were added since the last call.
  void queue(cudaStream_t stream);

 private:
  using Batch = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
  Batch batch_;
  std::vector<CUstreamBatchMemOpParams> operations_;
};

}  // namespace llmc
