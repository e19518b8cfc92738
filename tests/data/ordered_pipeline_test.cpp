#include "data/ordered_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace llmc {
namespace {

using Pipeline = OrderedPipeline<int, int>;

struct Trial {
  int items = 200;
  int read_fails_at = -1;
  int work_fails_at = -1;
  int write_fails_at = -1;
  int stops_at = -1;
  std::int64_t budget = 8;

  std::vector<int> written;
  std::string error;
  std::atomic<std::int64_t> in_flight = 0;
  std::int64_t most_in_flight = 0;

  void operator()(int threads) {
    int next = 0;
    const auto fail_at = [](int number, int at, const char* what) {
      if (number == at) throw std::runtime_error(what + std::to_string(number));
    };
    try {
      Pipeline(threads, budget)
          .run(
              [&](int& item) {
                if (next == items) return false;
                item = next++;
                fail_at(item, read_fails_at, "read ");
                most_in_flight = std::max<std::int64_t>(most_in_flight, ++in_flight);
                return true;
              },
              [](int) { return 1; },
              [&](int item) {
                // The first of every four is the last to finish.
                if (item % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
                fail_at(item, work_fails_at, "work ");
                return item * 10;
              },
              [&](int result) {
                fail_at(result / 10, write_fails_at, "write ");
                written.push_back(result);
                --in_flight;
                return result != stops_at * 10;
              });
    } catch (const std::runtime_error& e) {
      error = e.what();
    }
  }
  void expect_written(int count) const {
    ASSERT_EQ(written.size(), static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) EXPECT_EQ(written[static_cast<std::size_t>(i)], i * 10);
  }
};

class OrderedPipelineTest : public ::testing::TestWithParam<int> {};

TEST_P(OrderedPipelineTest, WritesInOrderWithinTheBudget) {
  Trial run;
  run(GetParam());
  EXPECT_EQ(run.error, "");
  run.expect_written(200);
  // A result may be on its way out while the next item is read.
  EXPECT_LE(run.most_in_flight, run.budget + 1);
  Trial none;
  none.items = 0;
  none(GetParam());
  none.expect_written(0);
}

TEST_P(OrderedPipelineTest, TheFirstErrorInOrderCounts) {
  Trial work;
  work.work_fails_at = 32;
  work.read_fails_at = 34;
  work(GetParam());
  EXPECT_EQ(work.error, "work 32");
  work.expect_written(32);
  Trial read;
  read.read_fails_at = 0;
  read(GetParam());
  EXPECT_EQ(read.error, "read 0");
  Trial later;
  later.read_fails_at = 33;
  later(GetParam());
  EXPECT_EQ(later.error, "read 33");
  later.expect_written(33);
  Trial write;
  write.write_fails_at = 16;
  write(GetParam());
  EXPECT_EQ(write.error, "write 16");
  write.expect_written(16);
}

TEST_P(OrderedPipelineTest, StopsWhenAsked) {
  Trial run;
  run.stops_at = 20;
  run(GetParam());
  EXPECT_EQ(run.error, "");
  run.expect_written(21);
}

INSTANTIATE_TEST_SUITE_P(Threads, OrderedPipelineTest, ::testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace llmc
