#include "comm/watch.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc {
namespace {

constexpr double kBeatSeconds = 1;
/// For a message to fit into a connection's buffer.
constexpr double kSendSeconds = 5;
/// How much longer than for a sign of life a rank waits for all to end, so that the one that has
/// fallen silent is named first.
constexpr double kNamingSeconds = 5;

}  // namespace

Watch::Watch(Star star, double silence_s)
    : rank_(star.rank),
      size_(star.size),
      silence_s_(silence_s),
      calls_at_leaving_(static_cast<std::size_t>(star.size), -1),
      parts_(static_cast<std::size_t>(star.size)) {
  for (std::size_t i = 0; i < star.peers.size(); ++i) {
    if (!star.peers[i].open()) continue;
    Peer& peer = peers_.emplace_back();
    peer.socket = std::move(star.peers[i]);
    peer.rank = rank_ == 0 ? static_cast<int>(i) : 0;
    peer.silent_from = Clock::now();
  }
  if (peers_.empty()) return;
  if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) {
    fail(ErrorKind::kComm, "comm", "cannot make a pipe for the thread that watches the ranks");
  }
  thread_ = std::thread([this] {
    try {
      run();
    } catch (const std::exception& error) {
      set_failed(rank_, concat("can no longer watch the others: ", error.what()), true);
    }
  });
}

Watch::~Watch() {
  leave();
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
  const Deadline deadline = in_seconds(1);
  for (Peer& peer : peers_) peer.socket.finish(deadline);
  for (const int fd : wake_) {
    if (fd >= 0) ::close(fd);
  }
}

void Watch::wake() noexcept {
  const char byte = 0;
  if (wake_[1] >= 0 && ::write(wake_[1], &byte, 1) < 0) return;  // full: it wakes anyway
}

void Watch::run() {
  const std::chrono::duration<double> silence(silence_s_);
  const std::chrono::duration<double> ending(silence_s_ + kNamingSeconds);
  Deadline next_beat = Clock::now(), all_left = next_beat;
  std::vector<pollfd> entries;
  for (;;) {
    entries.assign(1, {wake_[0], POLLIN, 0});
    for (const Peer& peer : peers_) entries.push_back({peer.socket.fd(), POLLIN, 0});
    const Deadline before = Clock::now();
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(next_beat - before).count();
    ::poll(entries.data(), entries.size(), static_cast<int>(std::clamp<long>(left, 0, 1000)));
    char ignored[64];
    while (::read(wake_[0], ignored, sizeof ignored) > 0) {
    }
    const Deadline now = Clock::now();
    // A process that was itself stopped for a while has heard nothing, which proves nothing.
    const bool slept = now - before > std::chrono::seconds(4);
    {
      const std::scoped_lock lock(mutex_);
      if (stop_) return;
      if (!nobody_left_ || slept) all_left = now;
    }
    for (Peer& peer : peers_) {
      if (slept) peer.silent_from = now;
      if (peer.socket.open()) read(peer);
      if (peer.socket.open() && now - peer.silent_from > silence) {
        lose(peer, concat("gave no sign of life for ", silence_s_, " s"));
      }
    }
    if (now - all_left > ending) {
      set_failed(rank_, concat("waited ", ending.count(), " s for all to end"), true);
      call_back();
    }
    if (now >= next_beat) {
      send_to_all({Frame::kBeat, {}});
      next_beat = now + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(kBeatSeconds));
    }
  }
}

void Watch::read(Peer& peer) {
  const std::size_t before = peer.arrived.size();
  const bool open = peer.socket.receive_some(peer.arrived);
  if (peer.arrived.size() > before) peer.silent_from = Clock::now();
  try {
    Frame frame;
    while (take_frame(peer.arrived, frame)) handle(peer, frame);
  } catch (const Error& error) {
    lose(peer, without_module(error));
    return;
  }
  if (!open) lose(peer, "has ended: its connection was closed", true);
}

void Watch::handle(Peer& peer, const Frame& frame) {
  Payload payload(frame.payload);
  if (frame.type == Frame::kFailed) {
    const int rank = static_cast<int>(payload.take_number());
    const std::string why = payload.take_text();
    set_failed(rank, why, rank_ == 0, static_cast<ErrorKind>(payload.take_number()));
  } else if (frame.type == Frame::kLeft) {
    const int rank = static_cast<int>(payload.take_number());
    set_left(rank_ == 0 ? peer.rank : rank, payload.take_number());
    if (rank_ == 0) send_to_all(frame);
  } else if (frame.type == Frame::kPart) {
    const std::scoped_lock lock(mutex_);
    parts_[static_cast<std::size_t>(peer.rank)].push_back(frame.payload);
    changed_.notify_all();
  } else if (frame.type == Frame::kAllLeft || frame.type == Frame::kBytes) {
    const std::scoped_lock lock(mutex_);
    if (frame.type == Frame::kAllLeft) nobody_left_ = true;
    if (frame.type == Frame::kBytes) shared_.push_back(frame.payload);
    changed_.notify_all();
  }
}

void Watch::lose(Peer& peer, std::string_view why, bool closed) {
  {
    const std::scoped_lock sending(peer.sending);
    peer.socket.close();
  }
  {
    const std::scoped_lock lock(mutex_);
    if (closed && (nobody_left_ || calls_at_leaving_[static_cast<std::size_t>(peer.rank)] >= 0)) {
      // Rank 0 is the last to go, unless a rank has failed: without it nobody can be waited for.
      if (peer.rank == 0 && failed_rank_ < 0) nobody_left_ = true;
      changed_.notify_all();
      return;
    }
  }
  set_failed(peer.rank, why, rank_ == 0);
}

void Watch::send(Peer& peer, const Frame& frame) noexcept {
  const std::scoped_lock sending(peer.sending);
  if (!peer.socket.open()) return;
  try {
    peer.socket.send(frame, in_seconds(kSendSeconds));
  } catch (const Error&) {  // reading from it says that it is gone
  }
}

void Watch::send_to_all(const Frame& frame) noexcept {
  for (Peer& peer : peers_) send(peer, frame);
}

void Watch::set_failed(int rank, std::string_view why, bool tell, ErrorKind kind) {
  {
    const std::scoped_lock lock(mutex_);
    if (failed_rank_ >= 0) return;
    failed_rank_ = rank;
    why_ = why;
    kind_ = kind;
    changed_.notify_all();
  }
  if (tell) {
    Payload payload;
    payload.put(std::int64_t{rank}).put(why).put(static_cast<std::int64_t>(kind));
    send_to_all({Frame::kFailed, payload.bytes()});
  }
  if (rank != rank_) call_back();
}

void Watch::call_back() {
  const std::scoped_lock lock(callback_mutex_);
  if (callback_) std::exchange(callback_, {})();
}

void Watch::set_left(int rank, std::int64_t calls) {
  int early = -1;
  {
    const std::scoped_lock lock(mutex_);
    if (rank < 0 || rank >= size_) return;
    calls_at_leaving_[static_cast<std::size_t>(rank)] = calls;
    early = left_too_early();
    changed_.notify_all();
  }
  if (early >= 0) set_failed(early, "left while the others go on", rank_ == 0);
}

int Watch::left_too_early() const {
  for (std::size_t r = 0; r < calls_at_leaving_.size(); ++r) {
    if (calls_at_leaving_[r] >= 0 && calls_at_leaving_[r] < calls_) return static_cast<int>(r);
  }
  return -1;
}

bool Watch::all_left() const {
  return std::all_of(calls_at_leaving_.begin(), calls_at_leaving_.end(),
                     [](std::int64_t calls) { return calls >= 0; });
}

void Watch::throw_if_failed() const {
  if (failed_rank_ < 0) return;
  if (failed_rank_ == rank_) {
    fail(kind_, "comm", "this rank (", rank_, ") has given up: ", why_);
  }
  fail(kind_, "comm", "rank ", failed_rank_, " ", why_, "; rank ", rank_,
       " cannot go on without it");
}

std::string Watch::share(std::string_view bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  if (rank_ == 0 && bytes.size() > kMost) {
    fail(ErrorKind::kInput, "comm", "share: expected at most ", kMost, " bytes, got ",
         bytes.size());
  }
  count_call();
  if (rank_ == 0) {
    send_to_all({Frame::kBytes, std::string(bytes)});
    return std::string(bytes);
  }
  return take(shared_);
}

std::vector<std::string> Watch::gather(std::string_view bytes) {
  Payload all;
  if (rank_ == 0) {
    all.put(bytes);
    for (int r = 1; r < size_; ++r) all.put(take(parts_[static_cast<std::size_t>(r)]));
  } else {
    check();
    send(peers_.front(), {Frame::kPart, std::string(bytes)});
  }
  Payload whole(share(all.bytes()));
  std::vector<std::string> parts;
  for (int r = 0; r < size_; ++r) parts.push_back(whole.take_text());
  return parts;
}

std::string Watch::take(std::deque<std::string>& queue) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !queue.empty() || failed_rank_ >= 0; });
  if (queue.empty()) throw_if_failed();
  std::string first = std::move(queue.front());
  queue.pop_front();
  return first;
}

void Watch::check() const {
  const std::scoped_lock lock(mutex_);
  throw_if_failed();
}

bool Watch::failed() const {
  const std::scoped_lock lock(mutex_);
  return failed_rank_ >= 0;
}

void Watch::give_up(std::string_view why, ErrorKind kind) noexcept {
  try {
    // What goes wrong later is a consequence.
    set_failed(rank_, concat("has given up: ", why.substr(0, 1000)), true, kind);
  } catch (const std::exception&) {  // no memory: the closed connection tells the others
  }
}

void Watch::count_call() {
  int early = -1;
  {
    const std::scoped_lock lock(mutex_);
    throw_if_failed();
    ++calls_;
    early = left_too_early();
  }
  if (early < 0) return;
  set_failed(early, "left while the others go on", rank_ == 0);
  check();
}

void Watch::on_failure(std::function<void()> call) {
  const std::scoped_lock callback(callback_mutex_);
  const bool late = failed();
  if (late && call) {
    call();
    return;
  }
  callback_ = std::move(call);
}

void Watch::leave() noexcept {
  if (std::exchange(left_, true) || peers_.empty()) return;
  std::int64_t calls = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (failed_rank_ >= 0) return;
    calls = calls_;
  }
  set_left(rank_, calls);
  Payload payload;
  payload.put(std::int64_t{rank_}).put(calls);
  send_to_all({Frame::kLeft, payload.bytes()});
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return failed_rank_ >= 0 || (rank_ == 0 ? all_left() : nobody_left_); });
  const bool failed = failed_rank_ >= 0;
  if (!failed) nobody_left_ = true;
  lock.unlock();
  if (failed) {
    log(LogLevel::kError, failed_end());
  } else if (rank_ == 0) {
    send_to_all({Frame::kAllLeft, {}});
  }
}

std::string Watch::failed_end() const {
  const std::scoped_lock lock(mutex_);
  return concat("[comm] expected all ranks to end together, got: rank ", failed_rank_, " ", why_,
                nobody_left_ ? "; all had done their work: nothing is lost, nor need be run again"
                             : concat("; rank ", rank_,
                                      " had done its work: nothing is lost if the "
                                      "last checkpoint or result is there, else run again"));
}

}  // namespace llmc
