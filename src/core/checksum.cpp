#include "llmc/core/checksum.h"

#include <bit>
#include <cstring>

namespace llmc {
namespace {

// The five primes of https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87ull;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Full;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9ull;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63ull;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5ull;
constexpr std::size_t kStripe = 32;

template <class T>
std::uint64_t load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::uint64_t mix(std::uint64_t lane, std::uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

void mix_stripe(std::array<std::uint64_t, 4>& lanes, const unsigned char* stripe) {
  for (std::size_t i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], load<std::uint64_t>(stripe + 8 * i));
}

std::uint64_t merge_lanes(const std::array<std::uint64_t, 4>& lanes) {
  std::uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
                       std::rotl(lanes[3], 18);
  for (const std::uint64_t lane : lanes) hash = (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

}  // namespace

Checksum64::Checksum64() : lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1} {}

void Checksum64::update(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  const auto* from = static_cast<const unsigned char*>(data);
  const std::size_t held = total_ % kStripe;
  total_ += bytes;
  if (held + bytes < kStripe) {
    std::memcpy(pending_.data() + held, from, bytes);
    return;
  }
  if (held > 0) {
    const std::size_t fill = kStripe - held;
    std::memcpy(pending_.data() + held, from, fill);
    mix_stripe(lanes_, pending_.data());
    from += fill;
    bytes -= fill;
  }
  for (; bytes >= kStripe; from += kStripe, bytes -= kStripe) mix_stripe(lanes_, from);
  std::memcpy(pending_.data(), from, bytes);
}

std::uint64_t Checksum64::value() const {
  std::uint64_t hash = total_ < kStripe ? kPrime5 : merge_lanes(lanes_);
  hash += total_;
  const unsigned char* from = pending_.data();
  std::size_t left = total_ % kStripe;
  for (; left >= 8; from += 8, left -= 8) {
    hash = std::rotl(hash ^ mix(0, load<std::uint64_t>(from)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ load<std::uint32_t>(from) * kPrime1, 23) * kPrime2 + kPrime3;
    from += 4;
    left -= 4;
  }
  for (; left > 0; ++from, --left) {
    hash = std::rotl(hash ^ *from * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::uint64_t checksum64(const void* data, std::size_t bytes) {
  Checksum64 checksum;
  checksum.update(data, bytes);
  return checksum.value();
}

}  // namespace llmc
