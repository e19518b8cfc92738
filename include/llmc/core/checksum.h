#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace llmc {

/// XXH64 (Yann Collet's xxHash, 64 bits, seed 0) of bytes that arrive in pieces: fast, and sure to
/// notice damage, but no protection against forgery.
class Checksum64 {
 public:
  Checksum64();
  void update(const void* data, std::size_t bytes);
  /// Of all bytes so far.
  std::uint64_t value() const;

 private:
  std::array<std::uint64_t, 4> lanes_;
  std::array<unsigned char, 32> pending_{};  // the last total_ % 32 bytes
  std::uint64_t total_ = 0;
};

/// Checksum64 of one piece.
std::uint64_t checksum64(const void* data, std::size_t bytes);

}  // namespace llmc
