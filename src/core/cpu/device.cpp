#include "llmc/core/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "core/copy_check.h"
#include "core/cpu/device_impl.h"
#include "core/cpu/parallel.h"
#include "core/system_limits.h"
#include "llmc/core/arena.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Large buffers start on a huge page.
std::align_val_t alignment_of(std::size_t bytes) {
  return std::align_val_t{bytes >= kHugePage ? kHugePage : kAlignment};
}

int thread_count(int wanted) {
#ifndef _OPENMP
  (void)wanted;
  return 1;
#else
  if (wanted < 0 || wanted > kMaxThreads) {
    fail(ErrorKind::kConfig, "device", "threads: expected 0 to ", kMaxThreads, ", got ", wanted);
  }
  return wanted > 0 ? wanted : default_threads();
#endif
}

cpu::Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return cpu::Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return cpu::Isa::kAvx2;
#endif
  return cpu::Isa::kPortable;
}

std::string_view isa_name(cpu::Isa isa) {
  constexpr std::string_view kNames[] = {"portable", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

cpu::Isa chosen_isa(std::string_view wanted) {
  const cpu::Isa best = best_isa();
  if (wanted == "auto") return best;
  for (const cpu::Isa isa : {cpu::Isa::kPortable, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (wanted != isa_name(isa)) continue;
    if (isa > best) {
      fail(ErrorKind::kDevice, "device", "isa: expected at most ", isa_name(best),
           ", the best this processor has, got ", wanted);
    }
    return isa;
  }
  fail(ErrorKind::kConfig, "device", "isa: expected auto, portable, avx2 or avx512, got ", wanted);
}

std::byte* at(void* data, std::size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

/// Cuts [0, bytes) into ranges and calls fn(begin, count) on a team of threads, on one if there is
/// little to do.
template <class Fn>
void for_byte_ranges(int threads, std::size_t bytes, const Fn& fn) {
  constexpr std::size_t kSerial = std::size_t{1} << 20;
  constexpr std::size_t kPiece = kHugePage;
  if (bytes == 0) return;
  if (bytes <= kSerial || threads == 1) return fn(0, bytes);
  const std::size_t pieces = (bytes + kPiece - 1) / kPiece;
  cpu::parallel_region(threads, [&](int thread, int team) {
    const auto cut = [&](int t) {
      return std::min(
          bytes, pieces * static_cast<std::size_t>(t) / static_cast<std::size_t>(team) * kPiece);
    };
    if (cut(thread) < cut(thread + 1)) fn(cut(thread), cut(thread + 1) - cut(thread));
  });
}

}  // namespace

std::string_view backend_name() {
  return "cpu";
}

int visible_gpus() {
  return 0;
}

std::int64_t preferred_chunk_bytes() {
  return std::int64_t{64} << 20;
}

Device Device::open(const DeviceOptions& options) {
  if (options.gpu != 0) {
    fail(ErrorKind::kConfig, "device", "gpu: expected 0, as this build computes on the CPU, got ",
         options.gpu);
  }
  if (options.attention != "auto" && options.attention != "own") {
    fail(ErrorKind::kConfig, "device",
         "attention: expected auto or own, as this build computes on ", "the CPU, got ",
         options.attention);
  }
  auto impl = std::make_shared<Impl>();
  impl->threads = thread_count(options.threads);
  impl->isa = chosen_isa(options.isa);
  return Device(std::move(impl));
}

std::string Device::name() const {
  return concat("CPU, ", threads(), threads() == 1 ? " thread, " : " threads, ",
                isa_name(impl_->isa));
}

int Device::threads() const {
  return impl_->threads;
}

std::size_t Device::free_memory() const {
  return available_memory();
}

std::optional<double> Device::peak_flops(DType, bool) const {
  return std::nullopt;
}
bool Device::tunes_matmul() const {
  return false;
}

Stream::Impl::Impl(const Device& d, bool products)
    : device(d),
      threads(d.threads()),
      isa(d.impl().isa),
      workspace(d, products ? static_cast<std::size_t>(threads) * cpu::kThreadWorkspaceBytes : 0),
      shared_workspace(d, products ? cpu::kSharedWorkspaceBytes : 0) {}

Stream::Stream(const Device& device) : impl_(std::make_unique<Impl>(device)) {}
Stream::Stream(const Device&, void*) {
  fail(ErrorKind::kConfig, "device",
       "a stream of the caller's: expected a GPU backend, got the CPU; build with "
       "LLMC_BACKEND=cuda");
}
Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream Stream::beside(const Device& device) {
  return Stream(std::make_unique<Impl>(device, false));
}
Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;

const Device& Stream::device() const {
  return impl_->device;
}
void Stream::synchronize() {}  // CPU ops are done when they return.
void* Stream::native() const {
  return nullptr;
}
void Stream::allow_tf32(bool allow) {
  if (!allow) return;
  fail(ErrorKind::kConfig, "device",
       "tf32: expected a GPU that has it, got the CPU; use fp32 or bf16");
}
std::size_t Stream::workspace_bytes() const {
  return impl_->workspace.bytes() + impl_->shared_workspace.bytes();
}

// What is queued is done at once.
struct StreamEvent::Impl {};
StreamEvent::StreamEvent(const Device&) {}
StreamEvent::~StreamEvent() = default;
StreamEvent::StreamEvent(StreamEvent&&) noexcept = default;
StreamEvent& StreamEvent::operator=(StreamEvent&&) noexcept = default;
void StreamEvent::record(Stream&) {}
void StreamEvent::hold(Stream&) const {}

struct TimeMark::Impl {
  std::chrono::steady_clock::time_point time;
};
TimeMark::TimeMark(const Device&) : impl_(std::make_unique<Impl>()) {}
TimeMark::~TimeMark() = default;
TimeMark::TimeMark(TimeMark&&) noexcept = default;
TimeMark& TimeMark::operator=(TimeMark&&) noexcept = default;

void TimeMark::record(Stream&) {
  impl_->time = std::chrono::steady_clock::now();
}

double TimeMark::since(const TimeMark& earlier) const {
  return std::chrono::duration<double>(impl_->time - earlier.impl_->time).count();
}

Buffer::Buffer(const Device& device, std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = ::operator new(bytes, alignment_of(bytes), std::nothrow);
  if (data_ == nullptr) {
    fail(ErrorKind::kMemory, "device", "expected ", format_bytes(bytes), " of memory on ",
         device.name(), ", got none; about ", format_bytes(device.free_memory()), " is free");
  }
#ifdef MADV_HUGEPAGE
  // Matrix products touch a new page with every row: with small pages, address translation costs
  // them several percent. Where the system has no huge pages to give, nothing is lost.
  if (bytes >= kHugePage) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  // The threads that will use the memory touch it first, which places it near their processors.
  for_byte_ranges(device.threads(), bytes, [this](std::size_t begin, std::size_t count) {
    std::memset(at(data_, begin), 0, count);
  });
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::operator delete(data_, alignment_of(bytes_));
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
  std::vector<std::byte> bytes;
};

Readback::Readback(const Device&, std::size_t bytes)
    : impl_(std::make_unique<Impl>(Impl{std::vector<std::byte>(bytes)})) {}
Readback::~Readback() = default;
Readback::Readback(Readback&&) noexcept = default;
Readback& Readback::operator=(Readback&&) noexcept = default;

void Readback::start(Stream&, const void* src) {
  std::memcpy(impl_->bytes.data(), src, impl_->bytes.size());
}

const void* Readback::wait() const {
  return impl_->bytes.data();
}

void copy_from_host(Stream& stream, const Tensor& dst, const void* src) {
  for_byte_ranges(stream.impl().threads, dst.bytes(), [&](std::size_t begin, std::size_t count) {
    std::memcpy(at(dst.raw(), begin), static_cast<const std::byte*>(src) + begin, count);
  });
}

void copy_to_host(Stream& stream, void* dst, const Tensor& src) {
  for_byte_ranges(stream.impl().threads, src.bytes(), [&](std::size_t begin, std::size_t count) {
    std::memcpy(at(dst, begin), at(src.raw(), begin), count);
  });
}

void copy_columns_to_host(Stream& stream, void* dst, const Tensor& src, std::int64_t columns) {
  expect_columns(src, columns);
  const auto row = static_cast<std::size_t>(columns) * size_of(src.dtype());
  const auto stride = static_cast<std::size_t>(src.dim(1)) * size_of(src.dtype());
  cpu::parallel_for(stream.impl(), src.dim(0), [&](std::int64_t begin, std::int64_t end) {
    for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r) {
      std::memcpy(at(dst, r * row), at(src.raw(), r * stride), row);
    }
  });
}

void copy(Stream& stream, const Tensor& dst, const Tensor& src) {
  expect_same_size(dst, src);
  copy_from_host(stream, dst, src.raw());
}

void zero(Stream& stream, const Tensor& tensor) {
  for_byte_ranges(stream.impl().threads, tensor.bytes(), [&](std::size_t begin, std::size_t count) {
    std::memset(at(tensor.raw(), begin), 0, count);
  });
}

}  // namespace llmc
