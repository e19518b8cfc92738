#include "comm/rendezvous.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "comm/watch.h"
#include "llmc/core/file.h"
#include "support/captured_log.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

/// Runs one thread per entry, and gives the error of each; empty: none.
std::vector<std::string> run_ranks(const std::vector<std::function<void()>>& ranks) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        ranks[r]();
      } catch (const Error& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

/// A port that was free a moment ago.
int free_port() {
  return Listener(0, in_seconds(1)).port();
}

/// Says what the star is in a word that rank 0 shares, and leaves.
void use(Star star, std::atomic<int>& seen) {
  const int rank = star.rank;
  EXPECT_EQ(star.local_rank, rank);
  EXPECT_EQ(star.local_size, star.size);
  Watch watch(std::move(star), 20);
  const std::string bytes("\0word", 5);
  EXPECT_EQ(watch.share(rank == 0 ? bytes : "ignored"), bytes);
  EXPECT_EQ(watch.share(rank == 0 ? "second" : ""), "second");
  seen += 1 << rank;
}

TEST(TcpStart, AllRanksMeetInAnyOrder) {
  for (const int size : {1, 2, 3, 7}) {
    const Meeting meeting{{"localhost"}, free_port(), "secret"};
    std::atomic<int> seen{0};
    std::vector<std::function<void()>> ranks;
    for (int r = 0; r < size; ++r) {
      ranks.push_back([&, r] {
        if (r == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        use(meet_by_tcp(meeting, r, size, in_seconds(20)), seen);
      });
    }
    for (const std::string& error : run_ranks(ranks)) EXPECT_EQ(error, "");
    EXPECT_EQ(seen, (1 << size) - 1);
  }
}

TEST(TcpStart, StrangersAreTurnedAway) {
  const testing::CapturedLog log;
  const int port = free_port();
  std::atomic<int> seen{0};
  const auto rank = [&](int r, const char* token, double seconds) {
    return [&seen, port, r, token, seconds] {
      use(meet_by_tcp({{"localhost"}, port, token}, r, 2, in_seconds(seconds)), seen);
    };
  };
  const auto silent_visitor = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    Socket socket = Socket::connect("localhost", port, in_seconds(5));
    socket.send({Frame::kBytes, "GET / HTTP/1.1"}, in_seconds(1));
  };
  const auto late = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    rank(1, "ours", 20)();
  };
  const auto errors = run_ranks({rank(0, "ours", 20), rank(1, "theirs", 1), silent_visitor, late});
  EXPECT_EQ(errors[0], "");
  expect_part(errors[1], "rank 1: expected to reach rank 0");
  expect_part(errors[1], "comm_token: rank 0 has another token");
  EXPECT_EQ(errors[3], "");
  EXPECT_EQ(seen, 3);
  expect_part(log.text(), "does not know the token");
  expect_part(log.text(), "it is no rank");
}

TEST(TcpStart, SilentStrangersKeepNoRankWaiting) {
  const testing::CapturedLog log;
  const int port = free_port();
  std::atomic<int> seen{0};
  const auto rank = [&](int r) {
    return [&seen, port, r] {
      if (r > 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      use(meet_by_tcp({{"localhost"}, port, "ours"}, r, 2, in_seconds(4)), seen);
    };
  };
  const auto silent_visitors = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::vector<Socket> sockets;
    for (int i = 0; i < 8; ++i)
      sockets.push_back(Socket::connect("localhost", port, in_seconds(5)));
    for (const Deadline end = in_seconds(6); seen != 3 && Clock::now() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
  const auto began = Clock::now();
  for (const std::string& error : run_ranks({rank(0), rank(1), silent_visitors})) {
    EXPECT_EQ(error, "");
  }
  EXPECT_EQ(seen, 3);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(3));
}

TEST(TcpStart, StrangersThatKeepComingDoNotPutTheDeadlineOff) {
  const testing::CapturedLog log;
  const int port = free_port();
  std::atomic<bool> over{false};
  const auto root = [&] {
    try {
      meet_by_tcp({{"localhost"}, port, "ours"}, 0, 2, in_seconds(1));
    } catch (...) {
      over = true;
      throw;
    }
  };
  const auto visitors = [&] {
    const Deadline end = in_seconds(8);
    std::vector<Socket> sockets;
    while (!over && Clock::now() < end) {
      try {
        sockets.push_back(Socket::connect("localhost", port, in_seconds(1)));
      } catch (const Error&) {  // rank 0 does not listen
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
  const auto began = Clock::now();
  expect_part(run_ranks({root, visitors})[0], "no word from rank 1");
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(5));
}

TEST(TcpStart, ARankThatWasTurnedAwaySaysSoWhenRankZeroHasGone) {
  const testing::CapturedLog log;
  const int port = free_port();
  const auto rank = [&](int r, const char* token, double seconds) {
    return [port, r, token, seconds] {
      meet_by_tcp({{"localhost"}, port, token}, r, 3, in_seconds(seconds));
    };
  };
  const auto errors = run_ranks({rank(0, "ours", 1), rank(1, "theirs", 2)});
  expect_part(errors[1], "comm_token: rank 0 has another token");
  const std::string told = "does not know the token";
  const std::string text = log.text();
  EXPECT_EQ(text.find(told), text.rfind(told)) << text;
}

TEST(TcpStart, ARankDoesNotTrustAHostThatDoesNotKnowTheToken) {
  Listener listener(0, in_seconds(1));
  const auto false_host = [&] {
    Socket socket = listener.accept(in_seconds(5));
    Payload hello;
    hello.put("llmc ranks 2").put(std::string(32, 'c'));
    socket.send({Frame::kHello, hello.bytes()}, in_seconds(1));
    socket.receive(4096, in_seconds(5));
    Payload welcome;
    welcome.put(std::string(32, 'p'));
    socket.send({Frame::kWelcome, welcome.bytes()}, in_seconds(1));
    socket.finish(in_seconds(5));
  };
  const auto rank = [&] { meet_at({{"localhost"}, listener.port(), "s"}, 1, 2, in_seconds(0)); };
  expect_part(run_ranks({false_host, rank})[1], "rank 0 of this run does not listen there");
}

TEST(TcpStart, MissingRanksAreNamedToAll) {
  const Meeting meeting{{"localhost"}, free_port(), "s"};
  const auto rank = [&](int r) { return [&, r] { meet_by_tcp(meeting, r, 4, in_seconds(1)); }; };
  const auto errors = run_ranks({rank(0), rank(2)});
  for (const std::string& error : errors) {
    expect_part(error, "expected 4 ranks before the deadline");
    expect_part(error, "no word from rank 1, 3");
  }
  const auto nobody = run_ranks({rank(3)});
  expect_part(nobody[0], "rank 3: expected to reach rank 0 before the deadline");
  expect_part(nobody[0], std::to_string(meeting.port));
}

TEST(TcpStart, ADifferentNumberOfRanksEndsTheStart) {
  const Meeting meeting{{"localhost"}, free_port(), "s"};
  const auto errors = run_ranks({[&] { meet_by_tcp(meeting, 0, 3, in_seconds(20)); },
                                 [&] { meet_by_tcp(meeting, 1, 2, in_seconds(20)); }});
  for (const std::string& error : errors) {
    expect_part(error, "comm_size: expected 3 ranks as rank 0 does, got rank 1 of 2");
  }
}

TEST(TcpStart, ASecondRankOfTheSameNumberIsRefused) {
  const Meeting meeting{{"localhost"}, free_port(), "s"};
  const auto first = [&] { meet_by_tcp(meeting, 1, 3, in_seconds(2)); };
  const auto errors = run_ranks({[&] { meet_by_tcp(meeting, 0, 3, in_seconds(2)); }, first, first});
  expect_part(errors[0], "no word from rank 2");
  EXPECT_TRUE((errors[1] + errors[2]).find("got a second rank 1") != std::string::npos)
      << errors[1] << errors[2];
}

TEST(TcpStart, APortInUseIsNamed) {
  Listener other(0, in_seconds(1));
  const Meeting meeting{{"localhost"}, other.port(), "s"};
  expect_error(ErrorKind::kComm,
               concat("comm_port: expected a port that rank 0 can listen on, got ", other.port()),
               [&] { meet_by_tcp(meeting, 0, 2, in_seconds(0.5)); });
}

class FileStart : public ::testing::Test {
 protected:
  std::vector<std::string> meet(int size, double first_after_s, const std::string& token = {}) {
    std::vector<std::function<void()>> ranks;
    for (int r = 0; r < size; ++r) {
      ranks.push_back([this, r, size, first_after_s, token] {
        if (r == 0) std::this_thread::sleep_for(std::chrono::duration<double>(first_after_s));
        use(meet_by_file(path_, token, r, size, in_seconds(20)), seen_);
      });
    }
    return run_ranks(ranks);
  }
  void expect_meeting(int size, double first_after_s) {
    for (const std::string& error : meet(size, first_after_s)) EXPECT_EQ(error, "");
    EXPECT_EQ(seen_, (1 << size) - 1);
    EXPECT_FALSE(std::filesystem::exists(path_));
  }

  testing::TempFolder folder_;
  std::string path_ = folder_ / "start";
  std::atomic<int> seen_{0};
};

TEST_F(FileStart, AllRanksMeetAndTheFileGoes) {
  expect_meeting(4, 0);
}

TEST_F(FileStart, AStaleFileLeadsNowhere) {
  // What a killed run left: nobody listens there.
  write_text(path_, meeting_text({{"localhost"}, free_port(), "old"}));
  expect_meeting(3, 0.5);
}

TEST_F(FileStart, AStaleFileWhosePortAnotherRunHasLeadsNowhere) {
  const testing::CapturedLog log;
  Listener listener(0, in_seconds(1));
  write_text(path_, meeting_text({{"localhost"}, listener.port(), "old"}));
  std::string other_run;
  std::thread other([&] {
    try {
      host_ranks(listener, "new", 2, in_seconds(2));
    } catch (const Error& error) {
      other_run = error.what();
    }
  });
  expect_meeting(3, 1);
  other.join();
  expect_part(other_run, "no word from rank 1");
}

TEST_F(FileStart, AHalfWrittenFileCountsAsNone) {
  const std::string whole = meeting_text({{"localhost"}, free_port(), "old"});
  ASSERT_TRUE(parse_meeting(whole));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(parse_meeting(whole.substr(0, length))) << length;
    std::string damaged = whole;
    damaged[length] = static_cast<char>(damaged[length] ^ 1);
    EXPECT_FALSE(parse_meeting(damaged)) << length;
  }
  std::ofstream(path_) << whole.substr(0, whole.size() / 2);
  expect_meeting(2, 0.5);
}

TEST_F(FileStart, AnotherTokenIsRefused) {
  const testing::CapturedLog log;
  const auto errors = run_ranks({[&] { meet_by_file(path_, "a", 0, 2, in_seconds(1.5)); },
                                 [&] { meet_by_file(path_, "b", 1, 2, in_seconds(1)); }});
  expect_part(errors[0], "no word from rank 1");
  expect_part(errors[1], "rank 0 has another token");
  const auto nobody = run_ranks({[&] { meet_by_file(path_, "b", 1, 2, in_seconds(0.2)); }});
  expect_part(nobody[0], "no whole start-up file is there");
}

}  // namespace
}  // namespace llmc
