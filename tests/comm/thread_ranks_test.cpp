#include "support/thread_ranks.h"

#include <gtest/gtest.h>

#include <atomic>

#include "llmc/core/error.h"
#include "support/collective_checks.h"
#include "support/temp_folder.h"
#include "support/test_tensor.h"

namespace llmc {
namespace {

TEST(ThreadRanks, CollectivesFollowArithmetic) {
  const Device device = Device::open({.threads = 1});
  for (const int ranks : {1, 2, 3, 4}) {
    std::atomic<int> seen{0};
    testing::run_thread_ranks(ranks, [&](Communicator& comm) {
      EXPECT_EQ(comm.size(), ranks);
      seen += 1 << comm.rank();
      testing::check_collectives(comm, device);
    });
    EXPECT_EQ(seen, (1 << ranks) - 1);
  }
}

TEST(ThreadRanks, ARankThatThrowsEndsTheOthers) {
  const Device device = Device::open({.threads = 1});
  std::atomic<int> told{0};
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 1) fail(ErrorKind::kInput, "test", "expected rank 0 only");
    Stream stream(device);
    try {
      comm.barrier(stream);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kComm);
      EXPECT_NE(std::string(error.what()).find("rank 1 failed: [test]"), std::string::npos);
      ++told;
      EXPECT_THROW(comm.check(), Error);
    }
  };
  testing::expect_error(ErrorKind::kInput, "rank 0 only",
                        [&] { testing::run_thread_ranks(3, body); });
  EXPECT_EQ(told, 2);
}

TEST(ThreadRanks, ARankThatLeavesEarlyIsNamed) {
  const Device device = Device::open({.threads = 1});
  testing::expect_error(ErrorKind::kComm, "rank 0 left before", [&] {
    testing::run_thread_ranks(2, [&](Communicator& comm) {
      Stream stream(device);
      if (comm.rank() == 1) comm.barrier(stream);
    });
  });
}

}  // namespace
}  // namespace llmc
