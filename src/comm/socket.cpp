#include "comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "llmc/core/error.h"

namespace llmc {
namespace {

using std::chrono::milliseconds;

std::string reason(int error) {
  return std::generic_category().message(error);
}

/// Whether the descriptor became ready for `events`, or failed, before the deadline.
bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - Clock::now() + milliseconds(1));
    pollfd entry = {fd, events, 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (count > 0) return true;
    if (count == 0 && Clock::now() >= deadline) return false;
    if (count < 0 && errno != EINTR) return true;  // the next call on it says why
  }
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

/// Empty: connected. Else why not.
std::string try_connect(Socket& socket, const addrinfo& address, Deadline deadline) {
  Socket trial(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!trial.open()) return reason(errno);
  if (::connect(trial.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return reason(errno);
    if (!wait_for(trial.fd(), POLLOUT, deadline)) return "no answer";
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(trial.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return reason(error);
  }
  socket = std::move(trial);
  return {};
}

}  // namespace

std::string without_module(const Error& error) {
  std::string_view text = error.what();
  constexpr std::string_view kModule = "[comm] ";
  if (text.starts_with(kModule)) text.remove_prefix(kModule.size());
  return std::string(text);
}

Socket::Socket(int fd) : fd_(fd) {
  if (fd_ < 0) return;
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
  const int yes = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
}

Socket::~Socket() {
  close();
}

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Socket Socket::connect(const std::string& host, int port, Deadline deadline) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) fail(ErrorKind::kComm, "comm", host, ": ", ::gai_strerror(status));
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  std::string why = "no address";
  for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
    Socket socket;
    why = try_connect(socket, *address, deadline);
    if (why.empty()) return socket;
  }
  fail(ErrorKind::kComm, "comm", host, ":", port, ": ", why);
}

void Socket::send(const Frame& frame, Deadline deadline) {
  std::string bytes(1, static_cast<char>(frame.type));
  const auto length = static_cast<std::uint32_t>(frame.payload.size());
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(length >> shift);
  bytes += frame.payload;
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd_, POLLOUT, deadline)) fail(ErrorKind::kComm, "comm", "it takes no message");
    } else if (errno != EINTR) {
      fail(ErrorKind::kComm, "comm", "its connection broke: ", reason(errno));
    }
  }
}

void Socket::receive_exactly(char* out, std::size_t bytes, Deadline deadline) {
  while (bytes > 0) {
    const ssize_t count = ::recv(fd_, out, bytes, 0);
    if (count > 0) {
      out += count;
      bytes -= static_cast<std::size_t>(count);
    } else if (count == 0) {
      fail(ErrorKind::kComm, "comm", "its connection was closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd_, POLLIN, deadline)) fail(ErrorKind::kComm, "comm", "no answer in time");
    } else if (errno != EINTR) {
      fail(ErrorKind::kComm, "comm", "its connection broke: ", reason(errno));
    }
  }
}

Frame Socket::receive(std::size_t limit, Deadline deadline) {
  std::string buffer(5, '\0');
  receive_exactly(buffer.data(), buffer.size(), deadline);
  std::uint32_t length = 0;
  std::memcpy(&length, buffer.data() + 1, sizeof length);
  if (length > limit) fail(ErrorKind::kComm, "comm", "its answer is no message of a rank");
  buffer.resize(5 + std::size_t{length});
  receive_exactly(buffer.data() + 5, length, deadline);
  Frame frame;
  take_frame(buffer, frame);
  return frame;
}

bool Socket::receive_some(std::string& buffer, std::size_t most) {
  char piece[4096];
  for (;;) {
    const std::size_t room = most - std::min(most, buffer.size());
    if (room == 0) return true;
    const ssize_t count = ::recv(fd_, piece, std::min(room, sizeof piece), 0);
    if (count > 0) {
      buffer.append(piece, static_cast<std::size_t>(count));
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return true;
    } else if (count == 0 || errno != EINTR) {
      return false;
    }
  }
}

void Socket::finish(Deadline deadline) {
  if (!open()) return;
  ::shutdown(fd_, SHUT_WR);
  std::string ignored;
  while (receive_some(ignored) && wait_for(fd_, POLLIN, deadline)) ignored.clear();
  close();
}

bool take_frame(std::string& buffer, Frame& frame) {
  if (buffer.size() < 5) return false;
  const auto type = static_cast<std::uint8_t>(buffer[0]);
  std::uint32_t length = 0;
  std::memcpy(&length, buffer.data() + 1, sizeof length);
  if (type > Frame::kAllLeft || length > kMaxFrameBytes) {
    fail(ErrorKind::kComm, "comm", "its bytes are no message of a rank");
  }
  if (buffer.size() < 5 + std::size_t{length}) return false;
  frame = {static_cast<Frame::Type>(type), buffer.substr(5, length)};
  buffer.erase(0, 5 + std::size_t{length});
  return true;
}

Listener::Listener(int port, Deadline deadline) {
  for (;;) {
    bool v6 = true;
    fd_ = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd_ < 0) {  // a kernel without IPv6
      v6 = false;
      fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    }
    if (fd_ < 0) fail(ErrorKind::kComm, "comm", "cannot open a socket: ", reason(errno));
    const int yes = 1, no = 0;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_storage address = {};
    socklen_t length = 0;
    if (v6) {
      ::setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
      auto& any = reinterpret_cast<sockaddr_in6&>(address);
      any.sin6_family = AF_INET6;
      any.sin6_addr = in6addr_any;
      any.sin6_port = htons(static_cast<std::uint16_t>(port));
      length = sizeof any;
    } else {
      auto& any = reinterpret_cast<sockaddr_in&>(address);
      any.sin_family = AF_INET;
      any.sin_addr.s_addr = htonl(INADDR_ANY);
      any.sin_port = htons(static_cast<std::uint16_t>(port));
      length = sizeof any;
    }
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
        ::listen(fd_, 1024) == 0) {
      ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
      // The port stands at the same place in both kinds of address.
      port_ = ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
      return;
    }
    const int error = errno;
    ::close(std::exchange(fd_, -1));
    if (error != EADDRINUSE || Clock::now() >= deadline) {
      fail(ErrorKind::kComm, "comm", "comm_port: expected a port that rank 0 can listen on, got ",
           port, " (", reason(error), "); another run may be using it");
    }
    std::this_thread::sleep_for(milliseconds(200));
  }
}

Listener::~Listener() {
  if (fd_ >= 0) ::close(fd_);
}

Socket Listener::accept(Deadline deadline) {
  while (wait_for(fd_, POLLIN, deadline)) {
    const int fd = ::accept(fd_, nullptr, nullptr);
    if (fd >= 0) return Socket(fd);
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
      fail(ErrorKind::kComm, "comm", "cannot take a connection: ", reason(errno));
    }
  }
  return {};
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const bool usable = at->ifa_addr != nullptr && (at->ifa_flags & IFF_UP) != 0 &&
                        (at->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable) continue;
    const int family = at->ifa_addr->sa_family;
    char text[NI_MAXHOST];
    const auto length =
        static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (family != AF_INET && family != AF_INET6) continue;
    if (::getnameinfo(at->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    // Addresses of a single link mean nothing elsewhere.
    if (std::strchr(text, '%') == nullptr) addresses.emplace_back(text);
  }
  ::freeifaddrs(list);
  return addresses;
}

std::string machine_id() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return concat(name, "/", ::gethostid());
}

std::string random_bytes(std::size_t count) {
  std::random_device device;
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(device());
  return bytes;
}

Payload& Payload::put(std::int64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> shift);
  }
  return *this;
}

Payload& Payload::put(std::string_view text) {
  put(static_cast<std::int64_t>(text.size()));
  bytes_ += text;
  return *this;
}

std::int64_t Payload::take_number() {
  if (bytes_.size() - at_ < 8) fail(ErrorKind::kComm, "comm", "a message is too short");
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 8) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes_[at_++])} << shift;
  }
  return static_cast<std::int64_t>(value);
}

std::string Payload::take_text() {
  const std::int64_t length = take_number();
  if (length < 0 || static_cast<std::uint64_t>(length) > bytes_.size() - at_) {
    fail(ErrorKind::kComm, "comm", "a message is too short");
  }
  std::string text = bytes_.substr(at_, static_cast<std::size_t>(length));
  at_ += text.size();
  return text;
}

}  // namespace llmc
