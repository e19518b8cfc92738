#include "llmc/core/device.h"

#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "core/copy_check.h"
#include "core/cuda/counters.h"
#include "core/cuda/device_impl.h"
#include "core/cuda/driver.h"
#include "core/cuda/host_ring.h"
#include "core/gpu_peaks.h"
#include "llmc/core/arena.h"
#include "llmc/core/error.h"

namespace llmc {

namespace cuda {

void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report it again
  const ErrorKind kind =
      status == cudaErrorMemoryAllocation ? ErrorKind::kMemory : ErrorKind::kDevice;
  fail(kind, "cuda", what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "state of a stream");
  return status != cudaStreamCaptureStatusNone;
}

namespace {

/// The primary contexts of the devices, which the runtime uses too; kept until the process ends.
class Contexts {
 public:
  Contexts() : of_device_(static_cast<std::size_t>(device_count())) {}

  CUcontext of(int ordinal) {
    std::atomic<CUcontext>& context = of_device_.at(static_cast<std::size_t>(ordinal));
    if (context == nullptr) {
      CUcontext made = nullptr;
      // The two kinds of error codes agree.
      check(static_cast<cudaError_t>(retain_(&made, ordinal)), "context of the GPU");
      context = made;
    }
    return context;
  }
  bool push(CUcontext context) const { return push_(context) == CUDA_SUCCESS; }
  void pop() const {
    CUcontext popped = nullptr;
    pop_(&popped);
  }

 private:
  static int device_count() {
    int count = 0;
    check(cudaGetDeviceCount(&count), "number of GPUs");
    return count;
  }

  decltype(&cuDevicePrimaryCtxRetain) retain_ =
      driver_function<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
  decltype(&cuCtxPushCurrent) push_ =
      driver_function<decltype(&cuCtxPushCurrent)>("cuCtxPushCurrent");
  decltype(&cuCtxPopCurrent) pop_ = driver_function<decltype(&cuCtxPopCurrent)>("cuCtxPopCurrent");
  std::vector<std::atomic<CUcontext>> of_device_;
};

/// Never destroyed, as objects that outlive main may still leave a scope.
Contexts& contexts() {
  static Contexts& contexts = *new Contexts;
  return contexts;
}

}  // namespace

CurrentDevice::CurrentDevice(int ordinal)
    // Refused by a driver that has shut down; what the scope wants of the device fails then, too.
    : pushed_(contexts().push(contexts().of(ordinal))) {}

CurrentDevice::~CurrentDevice() {
  if (pushed_) contexts().pop();
}

Counters& counters() {
  static Counters counters;
  return counters;
}

void wait(cudaEvent_t event) {
  ++counters().waits;
  check(cudaEventSynchronize(event), "work on the device");
}

void wait(cudaStream_t stream) {
  ++counters().waits;
  check(cudaStreamSynchronize(stream), "work on the device");
}

}  // namespace cuda

namespace {

using cuda::check;
using cuda::CurrentDevice;

cuda::AttentionKind attention_from_name(std::string_view name) {
  if (name == "auto") return cuda::AttentionKind::kAuto;
  if (name == "own") return cuda::AttentionKind::kOwn;
  if (name == "cudnn") return cuda::AttentionKind::kCudnn;
  fail(ErrorKind::kConfig, "device", "attention: expected auto, own or cudnn, got ", name);
}

/// Queues a copy.
void copy_bytes(Stream& stream, void* dst, const void* src, std::size_t bytes,
                cudaMemcpyKind kind) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(dst, src, bytes, kind, stream.impl().stream), "copy");
}

}  // namespace

std::string_view backend_name() {
  return "cuda";
}

int visible_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::int64_t preferred_chunk_bytes() {
  return std::int64_t{1} << 30;
}

Device Device::open(const DeviceOptions& options) {
  if (options.isa != "auto") {
    fail(ErrorKind::kConfig, "device", "isa: expected auto, as this build computes on a GPU, got ",
         options.isa);
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    fail(ErrorKind::kDevice, "device", "expected an NVIDIA GPU with a driver for CUDA ",
         CUDART_VERSION / 1000, ", got none (",
         status == cudaSuccess ? "no GPU is visible" : cudaGetErrorString(status), ")");
  }
  if (options.gpu < 0 || options.gpu >= count) {
    fail(ErrorKind::kConfig, "device", "gpu: expected 0 to ", count - 1, ", got ", options.gpu);
  }
  auto impl = std::make_shared<Impl>();
  impl->ordinal = options.gpu;
  const CurrentDevice current(impl->ordinal);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, impl->ordinal), "device properties");
  impl->gpu = properties.name;
  impl->compute_major = properties.major;
  impl->compute_minor = properties.minor;
  impl->processors = properties.multiProcessorCount;
  impl->shared_bytes = properties.sharedMemPerBlockOptin;
  impl->tune_matmul = options.tune_matmul;
  impl->tuning_cache = options.tuning_cache;
  impl->attention = attention_from_name(options.attention);
  if (impl->compute_major < 8) {
    fail(ErrorKind::kDevice, "device", "expected a GPU of compute capability 8.0 or higher ",
         "(Ampere or later), got ", impl->gpu, " with ", impl->compute_major, ".",
         impl->compute_minor);
  }
  return Device(std::move(impl));
}

std::string Device::name() const {
  return impl_->gpu;
}

int Device::threads() const {
  return 1;
}

std::size_t Device::free_memory() const {
  const CurrentDevice current(impl_->ordinal);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "free memory");
  return free;
}

std::optional<double> Device::peak_flops(DType dtype, bool tf32) const {
  const auto peaks = gpu_peaks(impl_->gpu);
  if (!peaks) return std::nullopt;
  const double rate = dtype == DType::kBF16 ? peaks->bf16 : tf32 ? peaks->tf32 : peaks->fp32;
  return rate > 0 ? std::optional(rate) : std::nullopt;
}
bool Device::tunes_matmul() const {
  return impl_->tune_matmul;
}

Stream::Impl::Impl(const Device& d, cudaStream_t wrapped, bool products)
    : device(d), stream(wrapped), owned(wrapped == nullptr) {
  const CurrentDevice current(ordinal());
  if (owned) {
    int lowest = 0, highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "stream priorities");
    const int priority = products ? lowest : highest;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "stream");
  }
  if (products) matmul_workspace = Buffer(d, cuda::kMatmulWorkspaceBytes);
  ring = std::make_unique<cuda::HostRing>();
}

Stream::Impl::~Impl() {
  const CurrentDevice current(ordinal());
  cudaStreamSynchronize(stream);  // nothing below may be in use
  attention_state.reset();
  matmul_state.reset();
  ring.reset();
  matmul_workspace = Buffer();
  if (owned) cudaStreamDestroy(stream);
}

Stream::Stream(const Device& device) : impl_(std::make_unique<Impl>(device, nullptr)) {}
Stream::Stream(const Device& device, void* native)
    : impl_(std::make_unique<Impl>(device, static_cast<cudaStream_t>(native))) {}
Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream Stream::beside(const Device& device) {
  return Stream(std::make_unique<Impl>(device, nullptr, false));
}
Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;

const Device& Stream::device() const {
  return impl_->device;
}

void Stream::synchronize() {
  const CurrentDevice current(impl_->ordinal());
  cuda::wait(impl_->stream);
}

void* Stream::native() const {
  return impl_->stream;
}

void Stream::allow_tf32(bool allow) {
  impl_->tf32 = allow;
  ++impl_->settings;
}

std::size_t Stream::workspace_bytes() const {
  return impl_->matmul_workspace.bytes();
}

namespace {

class Event {
 public:
  Event(const Device& device, unsigned flags) : ordinal_(device.impl().ordinal) {
    const CurrentDevice current(ordinal_);
    check(cudaEventCreateWithFlags(&event_, flags), "event");
  }
  ~Event() {
    const CurrentDevice current(ordinal_);
    cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  void record(Stream& stream) {
    const CurrentDevice current(ordinal_);
    check(cudaEventRecord(event_, stream.impl().stream), "event");
  }
  void wait() const {
    const CurrentDevice current(ordinal_);
    cuda::wait(event_);
  }
  int ordinal() const { return ordinal_; }

 private:
  int ordinal_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

struct StreamEvent::Impl {
  Event event;
  explicit Impl(const Device& device) : event(device, cudaEventDisableTiming) {}
};
StreamEvent::StreamEvent(const Device& device) : impl_(std::make_unique<Impl>(device)) {}
StreamEvent::~StreamEvent() = default;
StreamEvent::StreamEvent(StreamEvent&&) noexcept = default;
StreamEvent& StreamEvent::operator=(StreamEvent&&) noexcept = default;

void StreamEvent::record(Stream& stream) {
  impl_->event.record(stream);
}

void StreamEvent::hold(Stream& stream) const {
  const CurrentDevice current(stream.impl().ordinal());
  check(cudaStreamWaitEvent(stream.impl().stream, impl_->event.get(), 0), "event");
}

struct TimeMark::Impl {
  Event event;
  explicit Impl(const Device& device) : event(device, cudaEventDefault) {}
};
TimeMark::TimeMark(const Device& device) : impl_(std::make_unique<Impl>(device)) {}
TimeMark::~TimeMark() = default;
TimeMark::TimeMark(TimeMark&&) noexcept = default;
TimeMark& TimeMark::operator=(TimeMark&&) noexcept = default;

void TimeMark::record(Stream& stream) {
  impl_->event.record(stream);
}

double TimeMark::since(const TimeMark& earlier) const {
  const CurrentDevice current(impl_->event.ordinal());
  const cudaEvent_t event = impl_->event.get();
  if (cudaEventQuery(event) == cudaErrorNotReady) {
    cudaGetLastError();  // that was no error
    cuda::wait(event);
  }
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, earlier.impl_->event.get(), event),
        "time between events");
  return 1e-3 * static_cast<double>(milliseconds);
}

Buffer::Buffer(const Device& device, std::size_t bytes)
    : bytes_(bytes), gpu_(device.impl().ordinal) {
  if (bytes == 0) return;
  const CurrentDevice current(gpu_);
  ++cuda::counters().allocations;
  cuda::counters().allocated_bytes += bytes;
  const cudaError_t status = cudaMalloc(&data_, bytes);
  if (status != cudaSuccess) {
    cudaGetLastError();
    data_ = nullptr;
    fail(ErrorKind::kMemory, "device", "expected ", format_bytes(bytes), " of memory on ",
         device.name(), ", got none (", cudaGetErrorString(status), "); about ",
         format_bytes(device.free_memory()), " is free");
  }
  check(cudaMemset(data_, 0, bytes), "zeroing memory");
  check(cudaStreamSynchronize(cudaStreamLegacy), "zeroing memory");
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  const CurrentDevice current(gpu_);
  cudaFree(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      gpu_(other.gpu_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(gpu_, other.gpu_);
  return *this;
}

struct Readback::Impl {
  Event arrived;
  std::size_t bytes;
  void* host = nullptr;

  Impl(const Device& device, std::size_t size)
      : arrived(device, cudaEventDisableTiming), bytes(size) {
    const CurrentDevice current(device.impl().ordinal);
    check(cudaMallocHost(&host, bytes), "pinned host memory");
  }
  ~Impl() {
    const CurrentDevice current(arrived.ordinal());
    cudaEventSynchronize(arrived.get());
    cudaFreeHost(host);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

Readback::Readback(const Device& device, std::size_t bytes)
    : impl_(std::make_unique<Impl>(device, bytes)) {}
Readback::~Readback() = default;
Readback::Readback(Readback&&) noexcept = default;
Readback& Readback::operator=(Readback&&) noexcept = default;

void Readback::start(Stream& stream, const void* src) {
  const CurrentDevice current(stream.impl().ordinal());
  copy_bytes(stream, impl_->host, src, impl_->bytes, cudaMemcpyDeviceToHost);
  impl_->arrived.record(stream);
}

const void* Readback::wait() const {
  impl_->arrived.wait();
  return impl_->host;
}

void copy_from_host(Stream& stream, const Tensor& dst, const void* src) {
  const CurrentDevice current(stream.impl().ordinal());
  stream.impl().ring->copy(stream.impl().stream, dst.raw(), src, dst.bytes());
}

void copy_to_host(Stream& stream, void* dst, const Tensor& src) {
  const CurrentDevice current(stream.impl().ordinal());
  copy_bytes(stream, dst, src.raw(), src.bytes(), cudaMemcpyDeviceToHost);
  cuda::wait(stream.impl().stream);
}

void copy_columns_to_host(Stream& stream, void* dst, const Tensor& src, std::int64_t columns) {
  expect_columns(src, columns);
  if (src.dim(0) == 0 || columns == 0) return;
  const CurrentDevice current(stream.impl().ordinal());
  const std::size_t row = static_cast<std::size_t>(columns) * size_of(src.dtype());
  const std::size_t stride = static_cast<std::size_t>(src.dim(1)) * size_of(src.dtype());
  check(cudaMemcpy2DAsync(dst, row, src.raw(), stride, row, static_cast<std::size_t>(src.dim(0)),
                          cudaMemcpyDeviceToHost, stream.impl().stream),
        "copy");
  cuda::wait(stream.impl().stream);
}

void copy(Stream& stream, const Tensor& dst, const Tensor& src) {
  expect_same_size(dst, src);
  const CurrentDevice current(stream.impl().ordinal());
  copy_bytes(stream, dst.raw(), src.raw(), src.bytes(), cudaMemcpyDeviceToDevice);
}

void zero(Stream& stream, const Tensor& tensor) {
  if (tensor.bytes() == 0) return;
  const CurrentDevice current(stream.impl().ordinal());
  check(cudaMemsetAsync(tensor.raw(), 0, tensor.bytes(), stream.impl().stream), "zeroing memory");
}

}  // namespace llmc
