#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "llmc/core/device.h"

namespace llmc {

namespace cuda {

/// Throws a device error (a memory error where that is what failed) that says what was tried.
void check(cudaError_t status, std::string_view what);
/// After a kernel launch: throws what the launch itself failed with.
inline void check_launch(std::string_view op) {
  check(cudaGetLastError(), op);
}

/// Whether what is queued on the stream is recorded instead of run.
bool is_capturing(cudaStream_t stream);

/// Makes a device current for the scope; every public call that reaches the runtime opens one, so
/// that callers' own use of other devices is left alone. The first one of a device makes its
/// context, and throws a device error where it cannot; later ones do not throw.
///
/// By the driver's stack of contexts: to set and set back the runtime's device would make a
/// context, half a gigabyte of memory, on the device that was current before, if only because it is
/// the first.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  bool pushed_;
};

/// What an op family keeps on a Stream between calls: handles, plans. Made by the family itself at
/// its first call.
class StreamState {
 public:
  virtual ~StreamState() = default;
};

class HostRing;

/// DeviceOptions::attention.
enum class AttentionKind { kAuto, kOwn, kCudnn };

/// Workspace of a Stream for matrix products: the most that cuBLASLt's algorithms ask for.
inline constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{32} << 20;

}  // namespace cuda

struct Device::Impl {
  int ordinal = 0;
  std::string gpu;        ///< as the driver names it, for example "NVIDIA H200"
  int compute_major = 0;  ///< compute capability
  int compute_minor = 0;
  int processors = 0;            ///< streaming multiprocessors
  std::size_t shared_bytes = 0;  ///< most shared memory of a block, opted in
  bool tune_matmul = true;
  std::string tuning_cache;  ///< file of timed choices; empty: none
  cuda::AttentionKind attention = cuda::AttentionKind::kAuto;
};

struct Stream::Impl {
  /// wrapped: the caller's stream, or null. Without `products`, the stream has no workspace and the
  /// highest priority.
  Impl(const Device& d, cudaStream_t wrapped, bool products = true);
  ~Impl();

  Device device;
  cudaStream_t stream;
  bool owned;
  bool tf32 = false;  ///< whether fp32 products may round their inputs to TF32
  int settings = 0;   ///< counts changes of what kernels are chosen by
  Buffer matmul_workspace;
  std::unique_ptr<cuda::HostRing> ring;  ///< pinned memory on its way to the device
  std::unique_ptr<cuda::StreamState> matmul_state;
  std::unique_ptr<cuda::StreamState> attention_state;

  int ordinal() const { return device.impl().ordinal; }
  int processors() const { return device.impl().processors; }
};

}  // namespace llmc
