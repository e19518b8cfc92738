#include "comm/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/sha256.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"

namespace llmc {
namespace {

constexpr std::string_view kProtocol = "llmc ranks 2";
constexpr std::size_t kChallengeBytes = 32;
/// For a stranger to say something.
constexpr double kAnswerSeconds = 3;
/// While they meet, messages are short.
constexpr std::size_t kMaxMeetingBytes = 4096;
constexpr std::string_view kFileHeading = "llmc start-up 1";

/// Rank 0 knows this rank and will not have it, so it makes no sense to try again.
class Refused : public Error {
 public:
  explicit Refused(std::string_view why) : Error(ErrorKind::kComm, "comm", why) {}
};

/// Rank 0 answered but turned this rank away; it may be rank 0 of another run.
class TurnedAway : public Error {
 public:
  explicit TurnedAway(std::string_view why) : Error(ErrorKind::kComm, "comm", why) {}
};

/// Why rank 0 was not reached. That it turned this rank away says more than that it has gone since.
struct Failure {
  std::string why = "no host";
  bool turned_away = false;

  void note(const Error& error, std::string_view where = {}) {
    const bool now = dynamic_cast<const TurnedAway*>(&error) != nullptr;
    if (turned_away && !now) return;
    why = concat(where, without_module(error));
    turned_away = now;
  }
};

/// Shows knowledge of the secret in this exchange: `role` and `text` are part of what is shown.
std::string proof(const std::string& secret, std::string_view role, const std::string& first,
                  const std::string& second, std::string_view text) {
  Payload shown;
  shown.put(kProtocol).put(role).put(first).put(second).put(text);
  const Digest digest = hmac_sha256(secret, shown.bytes());
  return {digest.begin(), digest.end()};
}

bool same(const std::string& got, const std::string& want) {
  Digest a{}, b{};
  if (got.size() != a.size()) return false;
  std::copy(got.begin(), got.end(), a.begin());
  std::copy(want.begin(), want.end(), b.begin());
  return same_digest(a, b);
}

/// What a rank says of itself.
struct Arrival {
  int rank;
  int size;
  std::string machine;
};

/// Someone who has come to rank 0 and has not shown yet that it is a rank.
struct Visitor {
  Socket socket;
  std::string challenge;
  std::string arrived;
  Deadline deadline;
};

/// Rank 0's side of the exchange, with many at a time: one that is silent keeps no other waiting.
class Reception {
 public:
  Reception(Listener& listener, const std::string& secret) : listener_(listener), secret_(secret) {}

  /// The next who knows the secret, and what it says of itself; a socket that is not open: nobody
  /// came before the deadline.
  std::pair<Socket, Arrival> next(Deadline deadline) {
    while (Clock::now() < deadline) {
      wait(deadline);
      for (std::size_t i = visitors_.size(); i-- > 0;) {
        std::optional<Arrival> arrival;
        bool stays = true;
        try {
          arrival = hear(visitors_[i]);
        } catch (const Error& error) {
          turn_away(error);
          stays = false;
        }
        if (stays && !arrival) continue;
        Socket socket = std::move(visitors_[i].socket);
        visitors_.erase(visitors_.begin() + static_cast<std::ptrdiff_t>(i));
        if (arrival) return {std::move(socket), *arrival};
      }
    }
    return {};
  }

 private:
  /// Until someone comes or says something, or has been silent for too long.
  void wait(Deadline deadline) {
    constexpr std::size_t kMostVisitors = 256;
    std::vector<pollfd> entries;
    for (const Visitor& visitor : visitors_) {
      entries.push_back({visitor.socket.fd(), POLLIN, 0});
      deadline = std::min(deadline, visitor.deadline);
    }
    if (visitors_.size() < kMostVisitors) entries.push_back({listener_.fd(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const auto ms = std::clamp<std::int64_t>(left.count(), 0, 1000);
    if (::poll(entries.data(), entries.size(), static_cast<int>(ms)) <= 0) return;
    if (visitors_.size() < kMostVisitors && entries.back().revents != 0) greet();
  }

  void greet() {
    Socket socket = listener_.accept(Clock::now());
    if (!socket.open()) return;
    const Deadline deadline = in_seconds(kAnswerSeconds);
    const std::string challenge = random_bytes(kChallengeBytes);
    Payload hello;
    hello.put(kProtocol).put(challenge);
    try {
      socket.send({Frame::kHello, hello.bytes()}, deadline);
      visitors_.push_back({std::move(socket), challenge, {}, deadline});
    } catch (const Error& error) {
      turn_away(error);
    }
  }

  /// Nothing: it has more to say. Throws where it is no rank of this run.
  std::optional<Arrival> hear(Visitor& visitor) const {
    const bool open = visitor.socket.receive_some(visitor.arrived, kMaxMeetingBytes);
    Frame frame;
    if (!take_frame(visitor.arrived, frame)) {
      if (visitor.arrived.size() >= kMaxMeetingBytes) {
        fail(ErrorKind::kComm, "comm", "its answer is no message of a rank");
      }
      if (!open) fail(ErrorKind::kComm, "comm", "its connection was closed");
      if (Clock::now() >= visitor.deadline) fail(ErrorKind::kComm, "comm", "no answer in time");
      return {};
    }
    if (frame.type != Frame::kJoin) fail(ErrorKind::kComm, "comm", "it is no rank");
    Payload join(frame.payload);
    const std::string theirs = join.take_text(), shown = join.take_text(), text = join.take_text();
    const Deadline deadline = in_seconds(kAnswerSeconds);
    if (!same(shown, proof(secret_, "rank", visitor.challenge, theirs, text))) {
      Payload refusal;
      refusal.put(std::int64_t{0}).put("comm_token: rank 0 has another token");
      visitor.socket.send({Frame::kRefuse, refusal.bytes()}, deadline);
      fail(ErrorKind::kComm, "comm", "it does not know the token of this run");
    }
    Payload welcome;
    welcome.put(proof(secret_, "root", theirs, visitor.challenge, {}));
    visitor.socket.send({Frame::kWelcome, welcome.bytes()}, deadline);
    Payload who(text);
    Arrival arrival;
    arrival.rank = static_cast<int>(who.take_number());
    arrival.size = static_cast<int>(who.take_number());
    arrival.machine = who.take_text();
    return arrival;
  }

  /// Who comes again and again is told of once.
  void turn_away(const Error& error) {
    const std::string why = without_module(error);
    if (!told_.insert(why).second) return;
    log(LogLevel::kWarning, concat("a connection was turned away: ", why));
  }

  Listener& listener_;
  const std::string secret_;
  std::vector<Visitor> visitors_;
  std::set<std::string> told_;
};

void refuse(Socket& socket, std::string_view why) noexcept {
  try {
    Payload refusal;
    refusal.put(std::int64_t{1}).put(why);
    socket.send({Frame::kRefuse, refusal.bytes()}, in_seconds(1));
  } catch (const Error&) {  // it is gone
  }
}

/// Whether a rank that waits for the start is gone; before it, ranks have nothing to say.
bool ended(Socket& socket) {
  std::string ignored;
  return !socket.receive_some(ignored);
}

std::string list_missing(const std::vector<Socket>& peers) {
  std::string list;
  for (std::size_t r = 1; r < peers.size(); ++r) {
    if (!peers[r].open()) list += concat(list.empty() ? "" : ", ", r);
  }
  return list;
}

/// Tells all that have come why there is no start, and throws it.
[[noreturn]] void call_off(std::vector<Socket>& peers, const std::string& why) {
  for (Socket& peer : peers) {
    if (peer.open()) refuse(peer, why);
  }
  throw Refused(why);
}

/// The other side of the exchange, up to the start.
Star converse(Socket socket, const std::string& secret, int rank, int size, Deadline deadline) {
  const Deadline answer = in_seconds(kAnswerSeconds);
  const Frame first = socket.receive(kMaxMeetingBytes, answer);
  if (first.type != Frame::kHello) fail(ErrorKind::kComm, "comm", "rank 0 does not listen there");
  Payload hello(first.payload);
  if (hello.take_text() != kProtocol) {
    fail(ErrorKind::kComm, "comm", "rank 0 is of another version of llmc");
  }
  const std::string theirs = hello.take_text(), challenge = random_bytes(kChallengeBytes);
  Payload who;
  who.put(std::int64_t{rank}).put(std::int64_t{size}).put(machine_id());
  Payload join;
  join.put(challenge).put(proof(secret, "rank", theirs, challenge, who.bytes())).put(who.bytes());
  socket.send({Frame::kJoin, join.bytes()}, answer);
  bool welcome = false;
  for (;;) {
    // Rank 0 says itself who is missing at the deadline: it gets time to.
    const Frame frame =
        socket.receive(kMaxMeetingBytes, welcome ? deadline + std::chrono::seconds(5) : answer);
    Payload payload(frame.payload);
    if (frame.type == Frame::kRefuse) {
      const bool known = payload.take_number() != 0;
      const std::string why = payload.take_text();
      if (known && welcome) throw Refused(why);
      throw TurnedAway(why);
    }
    if (frame.type == Frame::kWelcome && !welcome) {
      welcome = same(payload.take_text(), proof(secret, "root", challenge, theirs, {}));
      if (welcome) continue;
    }
    if (frame.type != Frame::kStart || !welcome) {
      fail(ErrorKind::kComm, "comm", "rank 0 of this run does not listen there");
    }
    Star star;
    star.rank = rank;
    star.size = size;
    star.local_rank = static_cast<int>(payload.take_number());
    star.local_size = static_cast<int>(payload.take_number());
    star.peers.push_back(std::move(socket));
    return star;
  }
}

/// Tries each host once.
Star attend(const Meeting& meeting, int rank, int size, Deadline deadline) {
  Failure failure;
  for (const std::string& host : meeting.hosts) {
    Socket socket;
    try {
      socket = Socket::connect(host, meeting.port, std::min(deadline, in_seconds(kAnswerSeconds)));
      return converse(std::move(socket), meeting.secret, rank, size, deadline);
    } catch (const Refused&) {
      throw;
    } catch (const Error& error) {
      failure.note(error, concat(host, " port ", meeting.port, ": "));
    }
  }
  if (failure.turned_away) throw TurnedAway(failure.why);
  fail(ErrorKind::kComm, "comm", failure.why);
}

/// Calls `once` until it does not fail, or the deadline.
template <class Once>
Star retry(int rank, Deadline deadline, const Once& once) {
  Failure failure;
  for (;;) {
    try {
      return once();
    } catch (const Refused&) {
      throw;
    } catch (const Error& error) {
      failure.note(error);
    }
    if (Clock::now() >= deadline) {
      fail(ErrorKind::kComm, "comm", "rank ", rank,
           ": expected to reach rank 0 before the deadline (comm_deadline), got: ", failure.why);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

std::string checksum_text(std::string_view body) {
  return concat("end ", checksum64(body.data(), body.size()), "\n");
}

/// A whole start-up file, or nothing.
std::optional<Meeting> read_meeting(const std::string& path) {
  try {
    return parse_meeting(read_text(path, 1 << 16));
  } catch (const Error&) {  // it is not there yet
    return {};
  }
}

/// The file for as long as the ranks meet.
class StartFile {
 public:
  StartFile(std::string path, const Meeting& meeting)
      : path_(std::move(path)), text_(meeting_text(meeting)) {
    write_text(path_, text_);
  }
  ~StartFile() {
    try {
      if (read_text(path_, 1 << 16) == text_) std::filesystem::remove(path_);
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, concat("cannot remove ", path_, ": ", error.what()));
    }
  }
  StartFile(const StartFile&) = delete;
  StartFile& operator=(const StartFile&) = delete;

 private:
  std::string path_, text_;
};

}  // namespace

Star host_ranks(Listener& listener, const std::string& secret, int size, Deadline deadline) {
  Star star;
  star.size = size;
  star.peers.resize(static_cast<std::size_t>(size));
  std::vector<std::string> machines(static_cast<std::size_t>(size));
  machines[0] = machine_id();
  Reception reception(listener, secret);
  for (int missing = size - 1; missing > 0;) {
    auto [socket, arrival] = reception.next(deadline);
    if (!socket.open()) {
      call_off(star.peers, concat("expected ", size, " ranks before the deadline (comm_deadline), ",
                                  "got no word from rank ", list_missing(star.peers)));
    }
    const auto r = static_cast<std::size_t>(arrival.rank);
    if (arrival.size != size || arrival.rank < 1 || arrival.rank >= size) {
      const std::string why =
          concat("comm_size: expected ", size, " ranks as rank 0 does, got rank ", arrival.rank,
                 " of ", arrival.size);
      refuse(socket, why);
      call_off(star.peers, why);
    }
    if (star.peers[r].open() && ended(star.peers[r])) {  // and was started again
      star.peers[r].close();
      ++missing;
    }
    if (star.peers[r].open()) {
      refuse(socket, concat("comm_rank: expected each rank once, got a second rank ", r));
      continue;
    }
    star.peers[r] = std::move(socket);
    machines[r] = arrival.machine;
    --missing;
  }
  std::map<std::string, int> on_machine;
  std::vector<int> local_ranks;
  for (const std::string& machine : machines) local_ranks.push_back(on_machine[machine]++);
  star.local_size = on_machine[machines[0]];
  for (std::size_t r = 1; r < star.peers.size(); ++r) {
    Payload start;
    start.put(std::int64_t{local_ranks[r]}).put(std::int64_t{on_machine[machines[r]]});
    try {
      star.peers[r].send({Frame::kStart, start.bytes()}, in_seconds(kAnswerSeconds));
    } catch (const Error& error) {
      call_off(star.peers, concat("rank ", r, " ended during the start: ", without_module(error)));
    }
  }
  return star;
}

Star meet_at(const Meeting& meeting, int rank, int size, Deadline deadline) {
  return retry(rank, deadline, [&] { return attend(meeting, rank, size, deadline); });
}

Meeting new_meeting(const Listener& listener) {
  return {own_addresses(), listener.port(), hex(random_bytes(kChallengeBytes))};
}

std::string meeting_text(const Meeting& meeting) {
  std::string body = concat(kFileHeading, "\nmachine ", machine_id(), "\nport ", meeting.port,
                            "\nsecret ", meeting.secret, "\n");
  for (const std::string& host : meeting.hosts) body += concat("host ", host, "\n");
  return body + checksum_text(body);
}

std::optional<Meeting> parse_meeting(const std::string& text) {
  const std::size_t last = text.rfind("end ");
  if (last == text.npos || text.substr(last) != checksum_text(text.substr(0, last))) return {};
  std::istringstream lines(text.substr(0, last));
  std::string line;
  if (!std::getline(lines, line) || line != kFileHeading) return {};
  Meeting meeting;
  bool here = false;
  while (std::getline(lines, line)) {
    const std::size_t space = line.find(' ');
    if (space == line.npos) return {};
    const std::string key = line.substr(0, space), value = line.substr(space + 1);
    if (key == "machine") here = value == machine_id();
    if (key == "secret") meeting.secret = value;
    if (key == "host") meeting.hosts.push_back(value);
    if (key == "port") {
      std::from_chars(value.data(), value.data() + value.size(), meeting.port);
    }
  }
  if (here) meeting.hosts.insert(meeting.hosts.begin(), "localhost");
  return meeting;
}

Star meet_by_tcp(const Meeting& meeting, int rank, int size, Deadline deadline) {
  if (rank == 0) {
    Listener listener(meeting.port, std::min(deadline, in_seconds(10)));
    return host_ranks(listener, meeting.secret, size, deadline);
  }
  return meet_at(meeting, rank, size, deadline);
}

Star meet_by_file(const std::string& path, const std::string& token, int rank, int size,
                  Deadline deadline) {
  if (rank == 0) {
    Listener listener(0, deadline);
    const Meeting meeting = new_meeting(listener);
    const StartFile file(path, meeting);
    return host_ranks(listener, meeting.secret + token, size, deadline);
  }
  return retry(rank, deadline, [&] {
    std::optional<Meeting> meeting = read_meeting(path);
    if (!meeting) fail(ErrorKind::kComm, "comm", path, ": no whole start-up file is there");
    meeting->secret += token;
    return attend(*meeting, rank, size, deadline);
  });
}

}  // namespace llmc
