#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/error.h"

namespace llmc {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// So many seconds from now.
inline Deadline in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// The text of a comm error as a part of another's.
std::string without_module(const Error& error);

/// What ranks say to each other over a Socket.
struct Frame {
  enum Type : std::uint8_t {
    // while they meet
    kHello,    ///< rank 0: a challenge
    kJoin,     ///< another rank: its challenge, proof and who it is
    kWelcome,  ///< rank 0: its proof
    kRefuse,   ///< rank 0: why not; the connection ends
    kStart,    ///< rank 0: all have come
    // afterwards
    kBeat,    ///< a sign of life
    kPart,    ///< another rank: its part of what is gathered
    kBytes,   ///< rank 0: what it shares
    kFailed,  ///< a rank has failed: which and why
    kLeft,    ///< a rank has left in order: which, and after how many calls
    kAllLeft  ///< rank 0: nobody is needed any more
  };
  Type type;
  std::string payload;
};

inline constexpr std::size_t kMaxFrameBytes = (std::size_t{1} << 20) + 64;

/// One end of a TCP connection. Functions throw comm errors.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  /// To the first of the host's addresses that answers.
  static Socket connect(const std::string& host, int port, Deadline deadline);

  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();

  void send(const Frame& frame, Deadline deadline);
  /// The next frame; longer than `limit` bytes is an error, as is the end of the connection.
  Frame receive(std::size_t limit, Deadline deadline);
  /// Takes what has arrived into `buffer`, up to `most` bytes in it, without waiting. False: the
  /// connection has ended.
  bool receive_some(std::string& buffer, std::size_t most = SIZE_MAX);
  /// Closes once the other end has closed, or at the deadline: closing earlier could lose what was
  /// sent last.
  void finish(Deadline deadline);

 private:
  void receive_exactly(char* out, std::size_t bytes, Deadline deadline);
  int fd_ = -1;
};

/// Takes the first frame out of `buffer`; false if it is not whole yet. Throws a comm error where
/// the bytes are no frame.
bool take_frame(std::string& buffer, Frame& frame);

/// Waits for connections on all of the machine's addresses.
class Listener {
 public:
  /// port 0: any that is free. One that is in use is tried again until the deadline, and then a
  /// comm error.
  Listener(int port, Deadline deadline);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_; }
  int port() const { return port_; }
  /// A socket that is not open: nobody came before the deadline.
  Socket accept(Deadline deadline);

 private:
  int fd_ = -1;
  int port_ = 0;
};

/// The addresses under which other machines may reach this one.
std::vector<std::string> own_addresses();

/// What no two machines have in common.
std::string machine_id();

/// Bytes that nobody can guess.
std::string random_bytes(std::size_t count);

/// Builds and takes apart payloads: numbers have 8 bytes, little endian; texts follow their length.
class Payload {
 public:
  Payload() = default;
  explicit Payload(std::string bytes) : bytes_(std::move(bytes)) {}

  Payload& put(std::int64_t value);
  Payload& put(std::string_view text);
  /// Throw a comm error where the bytes end.
  std::int64_t take_number();
  std::string take_text();
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace llmc
