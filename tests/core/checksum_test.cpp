#include "llmc/core/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "llmc/core/rng.h"

namespace llmc {
namespace {

std::uint64_t of(std::string_view text) {
  return checksum64(text.data(), text.size());
}

TEST(Checksum64, KnownValues) {
  EXPECT_EQ(of(""), 0xEF46DB3751D8E999ull);
  EXPECT_EQ(of("a"), 0xD24EC4F1A98C6E5Bull);
  EXPECT_EQ(of("abc"), 0x44BC2CF5AD770999ull);
  EXPECT_EQ(of("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1ull);
}

TEST(Checksum64, DoesNotDependOnThePieces) {
  Mt19937 rng(1);
  std::vector<unsigned char> bytes(1000);
  for (auto& b : bytes) b = static_cast<unsigned char>(rng.next_u32());
  const std::uint64_t whole = checksum64(bytes.data(), bytes.size());
  for (int round = 0; round < 50; ++round) {
    Checksum64 checksum;
    for (std::size_t done = 0; done < bytes.size();) {
      const std::size_t n = std::min<std::size_t>(rng.next_u32() % 80, bytes.size() - done);
      checksum.update(bytes.data() + done, n);
      done += n;
    }
    EXPECT_EQ(checksum.value(), whole);
  }
}

TEST(Checksum64, EveryFlippedBitChangesIt) {
  std::vector<unsigned char> bytes(77, 0x5a);
  const std::uint64_t whole = checksum64(bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    EXPECT_NE(checksum64(bytes.data(), bytes.size()), whole);
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
  }
}

}  // namespace
}  // namespace llmc
