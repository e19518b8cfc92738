#include "llmc/core/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llmc/core/error.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

TEST(Arena, PlansAlignedSegmentsOfEachKind) {
  Arena arena;
  const auto a = arena.declare(MemoryKind::kParameters, "wte", DType::kF32, {3, 5});
  const auto b = arena.declare(MemoryKind::kParameters, "wpe", DType::kBF16, {7});
  const auto c = arena.declare(MemoryKind::kScratch, "logits", DType::kU8, {100});
  const auto empty = arena.declare(MemoryKind::kScratch, "none", DType::kF32, {0, 4});
  EXPECT_EQ(arena.segments()[a].bytes, 60u);
  EXPECT_EQ(arena.segments()[b].offset, 64u);
  EXPECT_EQ(arena.segments()[c].offset, 0u);
  EXPECT_EQ(arena.segments()[empty].bytes, 0u);
  EXPECT_EQ(arena.bytes(MemoryKind::kParameters), 128u);
  EXPECT_EQ(arena.bytes(MemoryKind::kScratch), 128u);
  EXPECT_EQ(arena.bytes(MemoryKind::kGradients), 0u);
  EXPECT_EQ(arena.bytes(), 256u);
  EXPECT_FALSE(arena.allocated());
}

TEST(Arena, GivesZeroedDisjointViews) {
  const Device device = Device::open();
  Stream stream(device);
  Arena arena;
  std::vector<Arena::Id> ids;
  for (std::int64_t n : {1, 17, 64, 1000}) {
    ids.push_back(arena.declare(MemoryKind::kActivations, "block.x", DType::kF32, {n, 3}));
  }
  arena.allocate(device);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Tensor t = arena.tensor(ids[i]);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.raw()) % 64, 0u);
    std::vector<float> host(static_cast<std::size_t>(t.numel()), 1.0f);
    copy_to_host(stream, host.data(), t);
    EXPECT_EQ(host, std::vector<float>(host.size(), 0.0f));
    copy_from_host(stream, t, std::vector<float>(host.size(), static_cast<float>(i + 1)).data());
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {  // no segment has overwritten another
    const Tensor t = arena.tensor(ids[i]);
    std::vector<float> host(static_cast<std::size_t>(t.numel()));
    copy_to_host(stream, host.data(), t);
    EXPECT_EQ(host, std::vector<float>(host.size(), static_cast<float>(i + 1)));
  }
}

TEST(Arena, ViewsSurviveAMove) {
  const Device device = Device::open();
  Arena arena;
  const auto id = arena.declare(MemoryKind::kGradients, "g", DType::kF32, {5});
  arena.allocate(device);
  const Tensor before = arena.tensor(id);
  Arena moved(std::move(arena));
  EXPECT_EQ(moved.tensor(id).raw(), before.raw());
  Arena assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.tensor(id).raw(), before.raw());
  EXPECT_TRUE(assigned.allocated());
}

TEST(Arena, ReportGroupsByTheNameBeforeTheDot) {
  Arena arena;
  arena.declare(MemoryKind::kParameters, "wte", DType::kF32, {1024, 256});
  arena.declare(MemoryKind::kParameters, "block.0.qkv", DType::kF32, {256, 256});
  arena.declare(MemoryKind::kParameters, "block.1.qkv", DType::kF32, {256, 256});
  arena.declare(MemoryKind::kScratch, "s", DType::kU8, {640});
  EXPECT_EQ(arena.report(),
            "parameters                            1.50 MiB\n"
            "  wte                                 1.00 MiB\n"
            "  block                              512.0 KiB\n"
            "scratch                                  640 B\n"
            "  s                                      640 B\n"
            "total                                 1.50 MiB\n");
}

TEST(Arena, OverlaysLieOverTheOthersOfTheirKind) {
  Arena arena;
  const auto small = arena.overlay(MemoryKind::kScratch, "small", DType::kU8, {100});
  const auto a = arena.declare(MemoryKind::kScratch, "a", DType::kU8, {64});
  EXPECT_EQ(arena.segments()[small].offset, 0u);
  EXPECT_EQ(arena.segments()[a].offset, 0u);
  EXPECT_EQ(arena.bytes(MemoryKind::kScratch), 128u);
  arena.declare(MemoryKind::kScratch, "b", DType::kU8, {100});
  EXPECT_EQ(arena.bytes(MemoryKind::kScratch), 192u);
  arena.overlay(MemoryKind::kScratch, "large", DType::kU8, {1000});
  EXPECT_EQ(arena.bytes(MemoryKind::kScratch), 1024u);
  EXPECT_EQ(arena.report(),
            "scratch                               1.00 KiB\n"
            "  small (over the others)                100 B\n"
            "  a                                       64 B\n"
            "  b                                      100 B\n"
            "  large (over the others)               1000 B\n"
            "total                                 1.00 KiB\n");
}

TEST(Arena, FormatsBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::size_t{12} << 20), "12.0 MiB");
  EXPECT_EQ(format_bytes(std::size_t{3} << 41), "6.00 TiB");
}

TEST(Arena, TooLargePlansSayWhatWouldHelp) {
  const Device device = Device::open();
  const auto too_much = static_cast<std::int64_t>(device.free_memory()) * 2;
  const auto plan = [&](MemoryKind kind) {
    Arena arena;
    arena.declare(MemoryKind::kParameters, "wte", DType::kF32, {10});
    arena.declare(kind, "big", DType::kU8, {too_much});
    arena.allocate(device);
  };
  expect_error(ErrorKind::kMemory, "micro_batch", [&] { plan(MemoryKind::kActivations); });
  expect_error(ErrorKind::kMemory, "shard the optimizer", [&] { plan(MemoryKind::kOptimizer); });
  expect_error(ErrorKind::kMemory, "use a smaller model", [&] { plan(MemoryKind::kParameters); });
  expect_error(ErrorKind::kMemory, "[arena] expected ", [&] { plan(MemoryKind::kParameters); });
  expect_error(ErrorKind::kMemory, " too little", [&] { plan(MemoryKind::kParameters); });
}

TEST(Arena, RefusesTheWrongOrder) {
  const Device device = Device::open();
  Arena arena;
  const auto id = arena.declare(MemoryKind::kScratch, "s", DType::kF32, {2});
  expect_error(ErrorKind::kMemory, "got a plan only, for s", [&] { arena.tensor(id); });
  arena.allocate(device);
  expect_error(ErrorKind::kMemory, "got late after it",
               [&] { arena.declare(MemoryKind::kScratch, "late", DType::kF32, {2}); });
  expect_error(ErrorKind::kMemory, "got a second", [&] { arena.allocate(device); });
  expect_error(ErrorKind::kMemory, "expected a segment below 1, got 5", [&] { arena.tensor(5); });
}

}  // namespace
}  // namespace llmc
