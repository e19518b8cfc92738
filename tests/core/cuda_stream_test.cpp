// What only a GPU's Device and Stream do.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/cuda/counters.h"
#include "core/cuda/driver.h"
#include "core/replay.h"
#include "llmc/core/device.h"
#include "llmc/core/error.h"
#include "llmc/ops/activation.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

TEST(CudaDevice, RefusesWhatItLacks) {
  expect_error(ErrorKind::kConfig, "gpu: expected 0 to", [] { Device::open({.gpu = 4096}); });
  expect_error(ErrorKind::kConfig, "isa: expected auto", [] { Device::open({.isa = "avx2"}); });
  expect_error(ErrorKind::kConfig, "attention: expected auto, own or cudnn",
               [] { Device::open({.attention = "none"}); });
}

/// Uses the last GPU and ends the process: 0 if that left nothing behind on this thread and no
/// context on another GPU.
[[noreturn]] void use_last_gpu() {
  int count = 0;
  cudaGetDeviceCount(&count);
  {
    Stream stream(Device::open({.gpu = count - 1}));
    const Buffer memory(stream.device(), 12);
    const float values[] = {1.0f, -2.0f, 3.0f};
    copy_from_host(stream, Tensor(memory.data(), DType::kF32, {3}), values);
    TimeMark before(stream.device()), after(stream.device());
    StreamEvent event(stream.device());
    Readback readback(stream.device(), 12);
    before.record(stream);
    readback.start(stream, memory.data());
    event.record(stream);
    event.hold(stream);
    after.record(stream);
    readback.wait();
    after.since(before);
  }
  CUcontext current = nullptr;
  cuda::driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent")(&current);
  if (current != nullptr) std::exit(1);
  int device = -1;
  cudaGetDevice(&device);
  if (device != 0) std::exit(2);
  for (int other = 0; other < count - 1; ++other) {
    unsigned flags = 0;
    int active = 1;
    cuda::driver_function<decltype(&cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState")(
        other, &flags, &active);
    if (active != 0) std::exit(3);
  }
  std::exit(0);
}

TEST(CudaDevice, LeavesOtherGpusAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, without contexts yet
  EXPECT_EXIT(use_last_gpu(), ::testing::ExitedWithCode(0), "");
}

TEST(CudaStream, WrapsTheCallersAndGivesItBack) {
  const Device device = Device::open();
  cudaStream_t mine = nullptr;
  ASSERT_EQ(cudaStreamCreate(&mine), cudaSuccess);
  {
    Stream stream(device, mine);
    EXPECT_EQ(stream.native(), mine);
    const std::vector<float> values = {1.0f, -2.0f, 3.0f};
    Buffer in(device, 12), out(device, 12);
    const Tensor x(in.data(), DType::kF32, {3}), y(out.data(), DType::kF32, {3});
    copy_from_host(stream, x, values.data());
    add(stream, y, x, x);
    // Behind the op, on the same queue, without the library.
    std::vector<float> doubled(3);
    ASSERT_EQ(cudaMemcpyAsync(doubled.data(), y.raw(), 12, cudaMemcpyDeviceToHost, mine),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(mine), cudaSuccess);
    EXPECT_EQ(doubled, (std::vector<float>{2.0f, -4.0f, 6.0f}));
  }
  EXPECT_EQ(cudaStreamQuery(mine), cudaSuccess) << "the Stream destroyed what it only borrowed";
  cudaStreamDestroy(mine);
}

// Far more than the pinned ring holds, in one copy and in many.
TEST(CudaStream, CopiesMoreThanItsRingHolds) {
  const Device device = Device::open();
  Stream stream(device);
  std::vector<std::int32_t> host(std::size_t{20} << 20);  // 80 MiB
  std::iota(host.begin(), host.end(), 1);
  Buffer buffer(device, host.size() * 4);
  const Tensor all(buffer.data(), DType::kI32, {static_cast<std::int64_t>(host.size())});
  std::vector<std::int32_t> back(host.size());
  copy_from_host(stream, all, host.data());
  copy_to_host(stream, back.data(), all);
  EXPECT_EQ(back, host);
  zero(stream, all);
  constexpr std::int64_t kPiece = 10007;
  for (std::int64_t at = 0; at < all.numel(); at += kPiece) {
    const std::int64_t count = std::min(kPiece, all.numel() - at);
    std::vector<std::int32_t> piece(host.begin() + at, host.begin() + at + count);
    copy_from_host(stream, all.flat(at, count), piece.data());
  }
  copy_to_host(stream, back.data(), all);
  EXPECT_EQ(back, host);
}

// More copies than the ring keeps track of at once.
TEST(CudaStream, CopiesManySmallPieces) {
  const Device device = Device::open();
  Stream stream(device);
  std::vector<std::int32_t> host(5000);
  std::iota(host.begin(), host.end(), 1);
  Buffer buffer(device, host.size() * 4);
  const Tensor all(buffer.data(), DType::kI32, {static_cast<std::int64_t>(host.size())});
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const std::int32_t value = host[static_cast<std::size_t>(i)];
    copy_from_host(stream, all.flat(i, 1), &value);
  }
  std::vector<std::int32_t> back(host.size());
  copy_to_host(stream, back.data(), all);
  EXPECT_EQ(back, host);
}

TEST(CudaReadback, DoesNotWaitForWhatComesLater) {
  const Device device = Device::open();
  Stream stream(device);
  Buffer buffer(device, 4);
  const Tensor x(buffer.data(), DType::kI32, {1});
  std::int32_t value = 1;
  Readback readback(device, 4);
  copy_from_host(stream, x, &value);
  readback.start(stream, x.raw());
  value = 2;
  copy_from_host(stream, x, &value);
  EXPECT_EQ(*static_cast<const std::int32_t*>(readback.wait()), 1);
  readback.start(stream, x.raw());
  EXPECT_EQ(*static_cast<const std::int32_t*>(readback.wait()), 2);
}

TEST(CudaBuffer, SaysHowMuchIsFreeWhenItFails) {
  const Device device = Device::open();
  expect_error(ErrorKind::kMemory, "is free",
               [&] { Buffer too_large(device, std::size_t{1} << 50); });
  EXPECT_NO_THROW(Buffer(device, 1 << 20));
}

struct Doubling {
  Doubling() : device(Device::open()), stream(device), buffer(device, 12) {
    const std::vector<float> values = {1.0f, -2.0f, 3.0f};
    copy_from_host(stream, x(), values.data());
  }
  Tensor x() const { return {buffer.data(), DType::kF32, {3}}; }
  void twice(Replay& replay) {
    replay.run(stream, [this] {
      add(stream, x(), x(), x());
      ++calls;
    });
  }
  float first() {
    std::vector<float> back(3);
    copy_to_host(stream, back.data(), x());
    return back[0];
  }

  Device device;
  Stream stream;
  Buffer buffer;
  int calls = 0;
};

TEST(CudaReplay, RecordsTheSecondTimeAndReplaysFromThen) {
  Doubling d;
  Replay replay;
  for (int i = 0; i < 5; ++i) d.twice(replay);
  EXPECT_EQ(d.calls, 2);
  EXPECT_EQ(d.first(), 32.0f);
  d.stream.allow_tf32(true);  // other kernels may be chosen now
  for (int i = 0; i < 3; ++i) d.twice(replay);
  EXPECT_EQ(d.calls, 4);
  EXPECT_EQ(d.first(), 256.0f);
}

TEST(CudaReplay, LeavesTheStreamUsableWhereTheWorkFails) {
  Doubling d;
  Replay replay;
  bool fails = false;
  const auto work = [&] {
    add(d.stream, d.x(), d.x(), d.x());
    if (fails) fail(ErrorKind::kInput, "test", "expected no failure");
  };
  replay.run(d.stream, work);
  fails = true;
  expect_error(ErrorKind::kInput, "expected no failure", [&] { replay.run(d.stream, work); });
  EXPECT_EQ(d.first(), 2.0f) << "what failed was only recorded";
  fails = false;
  replay.run(d.stream, work);
  EXPECT_EQ(d.first(), 4.0f);
}

// The caller's recording takes the work in.
TEST(CudaReplay, IsPartOfACallersRecording) {
  Doubling d;
  Replay replay;
  const auto mine = static_cast<cudaStream_t>(d.stream.native());
  ASSERT_EQ(cudaStreamBeginCapture(mine, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int i = 0; i < 3; ++i) d.twice(replay);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(mine, &graph), cudaSuccess);
  std::size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(nodes, 3u);
  EXPECT_EQ(d.first(), 1.0f);
}

}  // namespace
}  // namespace llmc
