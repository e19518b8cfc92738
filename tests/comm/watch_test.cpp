#include "comm/watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/process_group_impl.h"
#include "llmc/comm/process_group.h"
#include "support/captured_log.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

/// `size` ranks as threads; body(watch) runs in each.
void run_watched(int size, const std::function<void(int rank, Watch& watch)>& body,
                 double silence_s = 20) {
  Listener listener(0, in_seconds(1));
  const Meeting meeting{{"localhost"}, listener.port(), "s"};
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Star star = r == 0 ? host_ranks(listener, meeting.secret, size, in_seconds(20))
                         : meet_at(meeting, r, size, in_seconds(20));
      Watch watch(std::move(star), silence_s);
      body(r, watch);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Waits until the watch knows of a failure.
void wait_for_failure(const Watch& watch) {
  const Deadline deadline = in_seconds(25);
  while (!watch.failed() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(Watch, ARankThatGivesUpIsNamedToAll) {
  std::atomic<int> told{0};
  run_watched(3, [&](int rank, Watch& watch) {
    std::atomic<int> called{0};
    watch.on_failure([&] { ++called; });
    if (rank == 2) {
      watch.give_up("expected milk, got honey", ErrorKind::kInput);
      watch.give_up("a second reason", ErrorKind::kComm);
      expect_error(ErrorKind::kInput, "this rank (2)", [&] { watch.check(); });
      EXPECT_EQ(called, 0);
      return;
    }
    wait_for_failure(watch);
    expect_error(ErrorKind::kInput, "rank 2 has given up: expected milk, got honey",
                 [&] { watch.check(); });
    expect_error(ErrorKind::kInput, "rank 2", [&] { watch.count_call(); });
    while (called == 0) std::this_thread::yield();
    int late = 0;
    watch.on_failure([&] { ++late; });
    EXPECT_EQ(called + late, 2);
    ++told;
  });
  EXPECT_EQ(told, 2);
}

TEST(Watch, EveryRankGathersThePartsOfAll) {
  run_watched(3, [&](int rank, Watch& watch) {
    for (int call = 0; call < 3; ++call) {
      const auto part = [&](int r) { return r == call ? std::string() : concat(call, " of ", r); };
      EXPECT_EQ(watch.gather(part(rank)), (std::vector<std::string>{part(0), part(1), part(2)}));
      EXPECT_EQ(watch.share(rank == 0 ? "between" : ""), "between");
    }
  });
}

TEST(Watch, TheDestructorWaitsForAll) {
  std::atomic<bool> slow_left{false};
  run_watched(3, [&](int rank, Watch& watch) {
    for (int call = 0; call < 5; ++call) watch.count_call();
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      slow_left = true;
      return;
    }
    watch.leave();
    EXPECT_TRUE(slow_left);
    EXPECT_FALSE(watch.failed());
  });
}

TEST(Watch, ARankThatLeavesTooEarlyIsNamed) {
  const testing::CapturedLog log;
  for (const int early : {0, 1}) {
    run_watched(3, [&](int rank, Watch& watch) {
      watch.count_call();
      if (rank == early) return;
      expect_error(ErrorKind::kComm, concat("rank ", early, " left while the others go on"), [&] {
        watch.count_call();
        wait_for_failure(watch);
        watch.check();
      });
    });
  }
}

TEST(Watch, AnErrorOnTheWayTellsTheOthers) {
  Listener listener(0, in_seconds(1));
  const auto group = [&](Star star) {
    return ProcessGroup(std::make_unique<ProcessGroup::Impl>("tcp", std::move(star), StartUp{}));
  };
  std::thread other([&] {
    expect_error(ErrorKind::kInput, "rank 1's own", [&] {
      const ProcessGroup mine =
          group(meet_at({{"localhost"}, listener.port(), "s"}, 1, 2, in_seconds(20)));
      fail(ErrorKind::kInput, "test", "rank 1's own");
    });
  });
  const ProcessGroup mine = group(host_ranks(listener, "s", 2, in_seconds(20)));
  const Deadline deadline = in_seconds(25);
  const auto wait = [&] {
    while (Clock::now() < deadline) {
      mine.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  expect_error(ErrorKind::kComm, "rank 1 has given up: an error ended it", wait);
  other.join();
}

/// A process that is rank 1, says so through the star, and then does `what`.
pid_t start_process(int port, const std::function<void()>& what) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    Watch watch(meet_at({{"localhost"}, port, "s"}, 1, 3, in_seconds(20)), 20);
    watch.share({});
    what();
  } catch (const Error&) {
  }
  ::_exit(0);
}

/// What ranks 0 and 2 say of the process.
void expect_noticed(double silence_s, const std::string& part, const std::function<void()>& what) {
  Listener listener(0, in_seconds(1));
  const pid_t child = start_process(listener.port(), what);
  ASSERT_GT(child, 0);
  const auto survive = [&](int rank) {
    Watch watch(rank == 0 ? host_ranks(listener, "s", 3, in_seconds(20))
                          : meet_at({{"localhost"}, listener.port(), "s"}, rank, 3, in_seconds(20)),
                silence_s);
    watch.share("go");
    wait_for_failure(watch);
    expect_error(ErrorKind::kComm, part, [&] { watch.check(); });
  };
  std::thread other([&] { survive(2); });
  survive(0);
  other.join();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Watch, AKilledProcessIsNoticedAtOnce) {
  const Deadline start = Clock::now();
  expect_noticed(20, "rank 1 has ended", [] { ::kill(::getpid(), SIGKILL); });
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

TEST(Watch, AProcessThatHangsIsNoticed) {
  expect_noticed(2, "rank 1 gave no sign of life for 2 s", [] { ::kill(::getpid(), SIGSTOP); });
}

TEST(Watch, ARankThatHangsWhileOthersLeaveIsNamedInTheLog) {
  Listener listener(0, in_seconds(1));
  const pid_t child = start_process(listener.port(), [] { ::kill(::getpid(), SIGSTOP); });
  ASSERT_GT(child, 0);
  testing::CapturedLog log;
  const auto leave = [&](int rank) {
    Watch watch(rank == 0 ? host_ranks(listener, "s", 3, in_seconds(20))
                          : meet_at({{"localhost"}, listener.port(), "s"}, rank, 3, in_seconds(20)),
                2);
    watch.share("go");
    watch.leave();
  };
  std::thread other([&] { leave(2); });
  leave(0);
  other.join();
  for (const int rank : {0, 2}) {
    const std::string expected = concat(
        "[comm] expected all ranks to end together, got: rank 1 gave no sign of life for 2 s; ",
        "rank ", rank, " had done its work");
    EXPECT_NE(log.text().find(expected), std::string::npos) << log.text();
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace llmc
