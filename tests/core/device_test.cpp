#include "llmc/core/device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "llmc/core/error.h"
#include "support/captured_log.h"
#include "support/temp_folder.h"
#include "support/test_tensor.h"

/// The address sanitizer reads this at start: a hopeless allocation fails as it does without it.
extern "C" const char* __asan_default_options() {  // NOLINT: the sanitizer's name
  return "allocator_may_return_null=1";
}

namespace llmc {
namespace {

using testing::CapturedLog;
using testing::expect_error;

/// Sets or, with none, removes an environment variable until the end of the scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~ScopedVariable() { set(old_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value) {
      ::setenv(name_, value->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

constexpr const char* kNoThreads = "only the CPU backend has threads, where built with OpenMP";
bool has_threads() {
  return Device::open({.threads = 3}).threads() == 3;
}

TEST(Device, TakesTheThreadsItIsGiven) {
  if (!has_threads()) GTEST_SKIP() << kNoThreads;
  const Device device = Device::open({.threads = 3, .isa = "portable"});
  EXPECT_EQ(device.threads(), 3);
  EXPECT_EQ(device.name(), "CPU, 3 threads, portable");
  EXPECT_EQ(Device::open({.threads = 1, .isa = "portable"}).name(), "CPU, 1 thread, portable");
  expect_error(ErrorKind::kConfig, "threads: expected 0 to", [] { Device::open({.threads = -1}); });
  expect_error(ErrorKind::kConfig, "got 100000", [] { Device::open({.threads = 100000}); });
}

TEST(Device, ReadsOmpNumThreads) {
  if (!has_threads()) GTEST_SKIP() << kNoThreads;
  CapturedLog log;
  for (const auto& [text, threads] : {std::pair{"5", 5}, {"4,2", 4}, {" 7", 7}}) {
    const ScopedVariable variable("OMP_NUM_THREADS", text);
    EXPECT_EQ(Device::open().threads(), threads) << text;
    EXPECT_EQ(Device::open({.threads = 2}).threads(), 2);
  }
  EXPECT_EQ(log.text(), "");
  const ScopedVariable none("OMP_NUM_THREADS", std::nullopt);
  const int processors = Device::open().threads();
  EXPECT_GE(processors, 1);
  for (const char* text : {"", "0", "-3", "many", "3 cores", "99999999999"}) {
    CapturedLog warnings;
    const ScopedVariable variable("OMP_NUM_THREADS", text);
    EXPECT_EQ(Device::open().threads(), processors) << text;
    EXPECT_NE(warnings.text().find("OMP_NUM_THREADS: expected 1 to"), std::string::npos) << text;
  }
}

TEST(Device, KnowsItsInstructionSets) {
  if (backend_name() != "cpu") GTEST_SKIP() << "only the CPU backend has instruction sets";
  EXPECT_NO_THROW(Device::open({.isa = "portable"}));
  expect_error(ErrorKind::kConfig, "isa: expected auto, portable, avx2 or avx512, got sse9",
               [] { Device::open({.isa = "sse9"}); });
  const std::string best = Device::open({.threads = 1}).name();
  for (const char* isa : {"avx2", "avx512"}) {
    try {
      EXPECT_NE(Device::open({.isa = isa}).name().find(isa), std::string::npos);
    } catch (const Error& error) {  // this processor lacks it
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      EXPECT_EQ(best.find(isa), std::string::npos);
    }
  }
}

TEST(Device, ReportsFreeMemory) {
  const std::size_t free = Device::open().free_memory();
  EXPECT_GT(free, std::size_t{1} << 20);
  EXPECT_LT(free, std::size_t{1} << 50);
}

TEST(Buffer, IsZeroedAlignedAndMovable) {
  const Device device = Device::open({.threads = 2});
  Stream stream(device);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, (std::size_t{5} << 20) + 3}) {
    Buffer buffer(device, bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    const Tensor view(buffer.data(), DType::kU8, {static_cast<std::int64_t>(bytes)});
    std::vector<std::uint8_t> host(bytes, 1);
    copy_to_host(stream, host.data(), view);
    EXPECT_EQ(host, std::vector<std::uint8_t>(bytes, 0));
    void* const address = buffer.data();
    Buffer moved(std::move(buffer));
    EXPECT_EQ(moved.data(), address);
    Buffer assigned;
    assigned = std::move(moved);
    EXPECT_EQ(assigned.data(), address);
    EXPECT_EQ(assigned.bytes(), bytes);
  }
  EXPECT_EQ(Buffer(device, 0).data(), nullptr);
}

TEST(Buffer, TooLargeIsAMemoryErrorWithTheSize) {
  const Device device = Device::open();
  // More than processes can address, so that no system promises it.
  const std::string where = backend_name() == "cpu" ? "CPU" : device.name();
  expect_error(ErrorKind::kMemory, "1024.0 TiB of memory on " + where,
               [&] { Buffer(device, std::size_t{1} << 50); });
}

TEST(Copies, MoveEveryByteForAnyThreads) {
  for (const int threads : {1, 3}) {
    const Device device = Device::open({.threads = threads});
    Stream stream(device);
    const std::int64_t n = (std::int64_t{5} << 20) + 7;
    std::vector<std::uint8_t> host(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < host.size(); ++i) {
      host[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
    }
    const Buffer a(device, host.size());
    const Buffer b(device, host.size());
    const Tensor ta(a.data(), DType::kU8, {n});
    const Tensor tb(b.data(), DType::kU8, {n});
    copy_from_host(stream, ta, host.data());
    copy(stream, tb, ta);
    std::vector<std::uint8_t> back(host.size());
    copy_to_host(stream, back.data(), tb);
    EXPECT_EQ(back, host);
    zero(stream, tb);
    copy_to_host(stream, back.data(), tb);
    EXPECT_EQ(back, std::vector<std::uint8_t>(host.size(), 0));
    stream.synchronize();
    expect_error(ErrorKind::kInput, "copy: expected the same dtype and count",
                 [&] { copy(stream, ta.flat(0, 5), tb.flat(0, 6)); });
  }
}

TEST(TimeMark, TellsTheTimeBetweenTwoPlaces) {
  constexpr double kPause = 0.03;
  const Device device = Device::open();
  Stream stream(device);
  TimeMark first(device), second(device);
  first.record(stream);
  stream.synchronize();
  std::this_thread::sleep_for(std::chrono::duration<double>(kPause));
  second.record(stream);
  EXPECT_EQ(first.since(first), 0);
  EXPECT_GE(second.since(first), 0.99 * kPause);
}

TEST(Stream, KeepsItsDeviceWhenMoved) {
  const std::string isa = testing::available_isas().front();  // "portable" on the CPU
  Stream stream(Device::open({.threads = 2, .isa = isa}));
  EXPECT_GT(stream.workspace_bytes(), 0u);
  Stream moved(std::move(stream));
  EXPECT_EQ(moved.device().name(), Device::open({.threads = 2, .isa = isa}).name());
}

}  // namespace
}  // namespace llmc
