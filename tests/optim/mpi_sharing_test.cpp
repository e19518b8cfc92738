// Processes that train together against one process with the same global batch.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/core/checksum.h"
#include "optim/shared_training.h"
#include "support/mpi_main.h"

namespace llmc {
namespace {

using testing::rank_device;
using testing::ranks;
using testing::SharedOutcome;
using testing::SharedSetting;

SharedOutcome train_together(SharedSetting setting, int steps) {
  setting.device = rank_device();
  return testing::train(&ranks(), setting, steps);
}

SharedOutcome train_alone(SharedSetting setting, int steps) {
  setting.device = rank_device();
  return testing::train(nullptr, setting, steps);
}

std::uint64_t hash_of(const SharedOutcome& outcome) {
  std::uint64_t hash = checksum64(outcome.losses.data(), outcome.losses.size() * sizeof(float));
  for (const auto& [name, bytes] : outcome.weights) {
    hash = hash * 31 + checksum64(bytes.data(), bytes.size());
  }
  return hash;
}

void expect_same_on_all_ranks(const SharedOutcome& outcome) {
  Stream stream(rank_device());
  const std::uint64_t own = hash_of(outcome);
  constexpr std::int64_t kBytes = sizeof own;
  const std::int64_t size = ranks().size();
  const Buffer memory(rank_device(), static_cast<std::size_t>(kBytes * size));
  const Tensor all(memory.data(), DType::kU8, {kBytes * size});
  const Tensor slice = all.flat(kBytes * ranks().rank(), kBytes);
  copy_from_host(stream, slice, &own);
  ranks().all_gather(stream, all, slice);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(size));
  copy_to_host(stream, hashes.data(), all);
  EXPECT_EQ(hashes, std::vector<std::uint64_t>(hashes.size(), own));
}

TEST(ProcessesSharing, TrainAsOneProcessDoesAndAlike) {
  constexpr int kSteps = 20;
  const SharedOutcome alone = train_alone({}, kSteps);
  ASSERT_LT(alone.losses.back(), alone.losses.front());
  const SharedOutcome sliced = train_together({.zero_stage = 1}, kSteps);
  const SharedOutcome whole = train_together({.zero_stage = 0}, kSteps);
  testing::expect_close(sliced.losses, alone.losses, 1e-5f);
  testing::expect_close(sliced.norms, alone.norms, 1e-4f);
  EXPECT_EQ(sliced.block.counted_tokens, alone.block.counted_tokens);
  testing::expect_same(whole, sliced);
  expect_same_on_all_ranks(sliced);
  if (ranks().size() == 1) testing::expect_same(sliced, alone);
}

TEST(ProcessesSharing, Bf16RoundsAlikeInBothStages) {
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    const SharedSetting setting{.dtype = DType::kBF16, .wire = wire};
    SharedSetting stage_0 = setting;
    stage_0.zero_stage = 0;
    const SharedOutcome sliced = train_together(setting, 8);
    testing::expect_same(train_together(stage_0, 8), sliced);
    expect_same_on_all_ranks(sliced);
    testing::expect_close(sliced.losses, train_alone(setting, 8).losses, 2e-2f);
  }
}

TEST(ProcessesSharing, ExchangeBesideThePassesChangesNoBits) {
  const SharedOutcome beside = train_together({.micro_steps = 5}, 6);
  testing::expect_same(train_together({.micro_steps = 5, .attached = false}, 6), beside);
}

}  // namespace
}  // namespace llmc
