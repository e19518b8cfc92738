#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "llmc/core/error.h"
#include "support/collective_checks.h"
#include "support/mpi_main.h"
#include "support/rank_device.h"
#include "support/test_tensor.h"

namespace llmc {
namespace {

using testing::rank_device;
using testing::ranks;

TEST(Ranks, AreAsManyAsStarted) {
  const char* const started = std::getenv("OMPI_COMM_WORLD_SIZE");
  ASSERT_NE(started, nullptr);
  EXPECT_EQ(std::to_string(ranks().size()), started);
  if (ranks().size() == 1) {
    EXPECT_EQ(ranks().name(), "single");
  } else if (backend_name() == "cpu") {
    EXPECT_EQ(ranks().name(), "mpi");
  } else {
    EXPECT_EQ(ranks().name(), testing::test_start_up().transport);
  }
  ranks().check();
}

TEST(Ranks, CollectivesFollowArithmetic) {
  testing::check_collectives(ranks(), rank_device());
}

// More than one piece of the exchange, and a last one that is smaller.
TEST(Ranks, LargeSumsAreExchangedInPieces) {
  Stream stream(rank_device());
  const std::int64_t count = (std::int64_t{9} << 20) + 5;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(static_cast<int>(i % 1000) + ranks().rank());
  }
  const Buffer buffer(rank_device(), numbers.size() * sizeof numbers[0]);
  const Tensor values(buffer.data(), DType::kF32, {count});
  copy_from_host(stream, values, numbers.data());
  ranks().all_reduce(stream, values);
  copy_to_host(stream, numbers.data(), values);
  const int size = ranks().size();
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const int first = static_cast<int>(i % 1000) * size;
    if (numbers[i] != static_cast<float>(first + size * (size - 1) / 2)) ++wrong;
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
