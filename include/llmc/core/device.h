#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "llmc/core/tensor.h"

namespace llmc {

/// How to open a Device.
struct DeviceOptions {
  /// Compute threads of each Stream. 0: OMP_NUM_THREADS if set, else the processors this process
  /// may run on. Ignored by GPU backends.
  int threads = 0;
  /// Instruction set of the CPU kernels: "auto" (the best this processor has), "portable", "avx2"
  /// or "avx512". Ignored by GPU backends.
  std::string isa = "auto";
};

/// The processor that tensors live on and ops run on: the CPU, or one GPU, as the build's backend
/// says. Cheap to copy; copies mean the same device.
class Device {
 public:
  /// Throws a config error for unusable options, a device error if there is no such device.
  static Device open(const DeviceOptions& options = {});

  /// For people, for example "CPU, 2 threads, avx512".
  std::string name() const;
  int threads() const;
  /// Bytes that can still be allocated, as the system sees it now.
  std::size_t free_memory() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Device(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// A queue of work on a Device. Ops on one Stream run in the order they are called; the caller may
/// go on before they finish. A Stream also holds what its ops must keep between calls (workspace,
/// handles, plans), so two Streams never disturb each other. One thread at a time may use it.
class Stream {
 public:
  explicit Stream(const Device& device);
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;

  const Device& device() const;
  /// Returns when all work queued so far is done. Throws what that work failed with.
  void synchronize();
  /// Bytes of workspace the Stream owns.
  std::size_t workspace_bytes() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Owned memory on a Device, aligned to at least 64 bytes, zeroed.
class Buffer {
 public:
  Buffer() = default;
  /// Throws a memory error that states the size if it cannot be had.
  Buffer(const Device& device, std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Copies host memory to a tensor, `dst.bytes()` bytes. `src` may be reused on return.
void copy_from_host(Stream& stream, const Tensor& dst, const void* src);
/// Copies a tensor to host memory and waits for it.
void copy_to_host(Stream& stream, void* dst, const Tensor& src);
/// Copies between tensors of the same dtype and element count; they must not overlap.
void copy(Stream& stream, const Tensor& dst, const Tensor& src);
/// Sets every byte to zero.
void zero(Stream& stream, const Tensor& tensor);

}  // namespace llmc
