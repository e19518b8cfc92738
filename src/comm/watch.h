#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/rendezvous.h"
#include "llmc/core/error.h"

namespace llmc {

/// Keeps the star's connections alive in a thread of its own, and notices ranks that fail. Rank 0
/// tells each rank what it hears from another.
class Watch {
 public:
  Watch(Star star, double silence_s);
  /// leave(), where it was not called.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// See ProcessGroup.
  std::string share(std::string_view bytes);
  std::vector<std::string> gather(std::string_view bytes);
  void check() const;
  bool failed() const;
  void give_up(std::string_view why, ErrorKind kind) noexcept;
  void count_call();
  void on_failure(std::function<void()> call);

  /// Says that this rank needs no other any more, and waits until none does or one has failed, of
  /// which the log tells. Until the destructor, which must follow within silence_s and 5 s, ranks
  /// that fall silent fail as before.
  void leave() noexcept;
  /// Which rank has failed while this one was leaving, as a message.
  std::string failed_end() const;

 private:
  struct Peer {
    Socket socket;
    int rank = 0;
    std::string arrived = {};
    Deadline silent_from = {};
    std::mutex sending = {};
  };

  void run();
  void read(Peer& peer);
  void handle(Peer& peer, const Frame& frame);
  /// The connection is over. That is a failure, but for one `closed` by a rank that had left.
  void lose(Peer& peer, std::string_view why, bool closed = false);
  void send(Peer& peer, const Frame& frame) noexcept;
  void send_to_all(const Frame& frame) noexcept;
  /// The first failure is the one that counts.
  void set_failed(int rank, std::string_view why, bool tell, ErrorKind kind = ErrorKind::kComm);
  void call_back();
  void set_left(int rank, std::int64_t calls);
  /// A rank that has left and made fewer calls; −1: none. The mutex is held.
  int left_too_early() const;
  bool all_left() const;
  void throw_if_failed() const;
  /// Waits until the queue holds something, and takes it.
  std::string take(std::deque<std::string>& queue);
  void wake() noexcept;

  const int rank_, size_;
  const double silence_s_;
  std::deque<Peer> peers_;
  int wake_[2] = {-1, -1};  // a pipe that ends the thread's wait

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int failed_rank_ = -1;
  std::string why_;
  ErrorKind kind_ = ErrorKind::kComm;
  std::vector<std::int64_t> calls_at_leaving_;  // −1: still there
  std::int64_t calls_ = 0;
  bool nobody_left_ = false;  // all have left, as rank 0 says
  bool left_ = false;         // leave() was called
  bool stop_ = false;
  std::deque<std::string> shared_;
  std::vector<std::deque<std::string>> parts_;  // rank 0: what came of each

  std::mutex callback_mutex_;
  std::function<void()> callback_;
  std::thread thread_;
};

}  // namespace llmc
