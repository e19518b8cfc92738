#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "llmc/core/tensor.h"

namespace llmc {

/// "cpu" or "cuda": what this build computes on.
std::string_view backend_name();

/// The GPUs that this process sees; 0 in a build for CPUs.
int visible_gpus();

/// Bytes of passing data, such as logits, that this backend works on best at a time: about a cache
/// on the CPU, enough to keep every processor busy on a GPU.
std::int64_t preferred_chunk_bytes();

/// How to open a Device.
struct DeviceOptions {
  /// Compute threads of each Stream. 0: OMP_NUM_THREADS if set, else the processors this process
  /// may run on. Ignored by GPU backends.
  int threads = 0;
  /// Instruction set of the CPU kernels: "auto" (the best this processor has), "portable", "avx2"
  /// or "avx512". GPU backends take only "auto".
  std::string isa = "auto";
  /// Number of the GPU among those that the process sees. The CPU backend takes only 0.
  int gpu = 0;
  /// GPU: whose attention runs: "own", "cudnn", or "auto": own where the build has kernels for
  /// this very GPU, dtype and head size, else cuDNN's if it is built in and takes the case, else
  /// own. The CPU backend has only its own.
  std::string attention = "auto";
  /// GPU: time several algorithms for each shape of matrix product when it first occurs, and keep
  /// the fastest. Without it the choice is the vendor library's, and the same everywhere.
  bool tune_matmul = true;
  /// GPU: file that remembers the timed choices from run to run. Empty: none.
  std::string tuning_cache = {};
};

/// The processor that tensors live on and ops run on: the CPU, or one GPU, as the build's backend
/// says. Cheap to copy; copies mean the same device.
class Device {
 public:
  /// Throws a config error for unusable options, a device error if there is no such device.
  static Device open(const DeviceOptions& options = {});

  /// For people, for example "CPU, 2 threads, avx512" or "NVIDIA H200".
  std::string name() const;
  int threads() const;
  /// Bytes that can still be allocated, as the system sees it now.
  std::size_t free_memory() const;

  /// FLOP/s of matrix products of this type at most, dense; tf32: where f32 is rounded to it.
  /// Nothing on CPUs and for GPUs that are not known.
  std::optional<double> peak_flops(DType dtype, bool tf32 = false) const;
  /// Whether choices between algorithms are timed (DeviceOptions::tune_matmul); not on CPUs.
  bool tunes_matmul() const;

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
  /// GPU: queues on the caller's own cudaStream_t, which must be of that device and outlive this.
  /// The CPU backend refuses it.
  Stream(const Device& device, void* native);
  /// A queue for work that goes on beside that of another: communication, copies and element-wise
  /// ops. It has no workspace; on a GPU its work goes first.
  static Stream beside(const Device& device);
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;

  const Device& device() const;
  /// Returns when all work queued so far is done. Throws what that work failed with.
  void synchronize();
  /// GPU: the cudaStream_t, so that a caller can queue work of its own between ops. CPU: null.
  void* native() const;
  /// GPU: whether products of fp32 matrices may round their inputs to TF32 (10 bits of mantissa),
  /// which is several times faster. Throws a config error where the device cannot.
  void allow_tf32(bool allow);
  /// Bytes of workspace the Stream owns.
  std::size_t workspace_bytes() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A place in the work of a Stream that other Streams of the Device can wait for.
class StreamEvent {
 public:
  explicit StreamEvent(const Device& device);
  ~StreamEvent();
  StreamEvent(StreamEvent&&) noexcept;
  StreamEvent& operator=(StreamEvent&&) noexcept;

  /// Marks the end of what is queued now, in place of an earlier mark.
  void record(Stream& stream);
  /// What is queued from now on runs behind the mark as it is now. The caller does not wait.
  void hold(Stream& stream) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The time at which the work of a Stream comes to a place. On the CPU, that at which it is queued.
class TimeMark {
 public:
  explicit TimeMark(const Device& device);
  ~TimeMark();
  TimeMark(TimeMark&&) noexcept;
  TimeMark& operator=(TimeMark&&) noexcept;

  /// Marks the end of what is queued now, in place of an earlier mark.
  void record(Stream& stream);
  /// Seconds from `earlier`, a mark of the same Device, to this one. Both have been recorded; waits
  /// until the work has come to them.
  double since(const TimeMark& earlier) const;

 private:
  struct Impl;
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
  int gpu_ = 0;  ///< whose memory it is
};

/// A few bytes of device memory on their way to the host. Unlike copy_to_host, it waits for nothing
/// that was queued later.
class Readback {
 public:
  Readback(const Device& device, std::size_t bytes);
  ~Readback();
  Readback(Readback&&) noexcept;
  Readback& operator=(Readback&&) noexcept;

  /// Queues the copy of the bytes at src, device memory.
  void start(Stream& stream, const void* src);
  /// The bytes as they were when the Stream reached the copy; waits for that. Valid until the next
  /// start.
  const void* wait() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Copies host memory to a tensor, `dst.bytes()` bytes. `src` may be reused on return.
void copy_from_host(Stream& stream, const Tensor& dst, const void* src);
/// Copies a tensor to host memory and waits for it.
void copy_to_host(Stream& stream, void* dst, const Tensor& src);
/// Copies the first `columns` elements of every row of a matrix to host memory, where the rows
/// follow one another, and waits for it. src: (R, C), columns ≤ C.
void copy_columns_to_host(Stream& stream, void* dst, const Tensor& src, std::int64_t columns);
/// Copies between tensors of the same dtype and element count; they must not overlap.
void copy(Stream& stream, const Tensor& dst, const Tensor& src);
/// Sets every byte to zero.
void zero(Stream& stream, const Tensor& tensor);

}  // namespace llmc
