#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "llmc/core/error.h"
#include "support/collective_checks.h"
#include "support/mpi_main.h"
#include "support/test_tensor.h"

namespace llmc {
namespace {

using testing::rank_device;
using testing::ranks;

TEST(Ranks, AreAsManyAsStarted) {
  const char* const started = std::getenv("OMPI_COMM_WORLD_SIZE");
  ASSERT_NE(started, nullptr);
  EXPECT_EQ(std::to_string(ranks().size()), started);
  EXPECT_EQ(ranks().name(), ranks().size() == 1 ? "single" : "mpi");
  ranks().check();
}

TEST(Ranks, CollectivesFollowArithmetic) {
  testing::check_collectives(ranks(), rank_device());
}

// More than one piece of the exchange, and a last one that is smaller.
TEST(Ranks, LargeSumsAreExchangedInPieces) {
  Stream stream(rank_device());
  const std::int64_t count = (std::int64_t{9} << 20) + 5;
  Buffer buffer(rank_device(), static_cast<std::size_t>(count) * 4);
  const Tensor values(buffer.data(), DType::kF32, {count});
  auto* const data = values.data<float>();
  for (std::int64_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(i % 1000 + ranks().rank());
  }
  ranks().all_reduce(stream, values);
  const int size = ranks().size();
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto want = static_cast<float>(i % 1000 * size + size * (size - 1) / 2);
    if (data[i] != want) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Ranks, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  Stream stream(rank_device());
  const testing::TestTensor out(stream, DType::kF32, {8});
  const testing::TestTensor in(stream, DType::kF32, {8L * ranks().size() + 1});
  EXPECT_THROW(ranks().reduce_scatter(stream, out, in), Error);
  EXPECT_THROW(ranks().all_gather(stream, in, out), Error);
  EXPECT_THROW(ranks().broadcast(stream, out, ranks().size()), Error);
  ranks().barrier(stream);
}

}  // namespace
}  // namespace llmc
