#include "llmc/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "llmc/io/safetensors.h"

namespace llmc {
namespace {

/// What PyTorch draws (python_ref/write_golden.py).
class Goldens : public ::testing::TestWithParam<int> {
 protected:
  std::string name(const std::string& what) const {
    return "seed" + std::to_string(GetParam()) + "." + what;
  }
  Mt19937 generator() const { return Mt19937(static_cast<std::uint32_t>(GetParam())); }

  void expect_u32(Mt19937& rng, const std::string& what) {
    const std::vector<std::int32_t> expected = file_.values<std::int32_t>(name(what));
    ASSERT_FALSE(expected.empty());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(rng.next_u32(), static_cast<std::uint32_t>(expected[i])) << what << " " << i;
    }
  }
  void expect_normals(Mt19937& rng, const std::string& what, float stddev) {
    const std::vector<float> expected = file_.values<float>(name(what));
    ASSERT_FALSE(expected.empty());
    std::vector<float> drawn(expected.size());
    rng.fill_normal(drawn, 0.0f, stddev);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(drawn[i], expected[i], 2e-6 * stddev) << what << " " << i;
    }
  }

  SafetensorsReader file_{LLMC_GOLDEN_DIR "/mt19937.safetensors"};
};

INSTANTIATE_TEST_SUITE_P(Mt19937, Goldens, ::testing::Values(42, 137));

TEST_P(Goldens, RawDraws) {
  Mt19937 rng = generator();
  expect_u32(rng, "u32");
}

// In the order in which they were drawn, so that what one call leaves behind shows in the next.
TEST_P(Goldens, NormalDraws) {
  Mt19937 rng = generator();
  for (const int length : {5, 16, 17, 100, 1000}) {
    expect_normals(rng, "normal_" + std::to_string(length), 1.0f);
  }
  expect_normals(rng, "normal_100_std_0.02", 0.02f);
  expect_normals(rng, "normal_3", 1.0f);
  expect_u32(rng, "u32_after");
}

TEST_P(Goldens, TheStateHoldsEverything) {
  Mt19937 rng = generator();
  std::vector<float> start(5);
  rng.fill_normal(start, 0.0f, 1.0f);  // the second half of a pair waits
  Mt19937 other(7);
  std::vector<float> noise(3);
  other.fill_normal(noise, 0.0f, 1.0f);
  other.restore(rng.state());
  std::vector<float> a(4);
  std::vector<float> b(4);
  for (int i = 0; i < 400; ++i) {
    rng.fill_normal(a, 1.0f, 2.0f);
    other.fill_normal(b, 1.0f, 2.0f);
    ASSERT_EQ(a, b);
    ASSERT_EQ(rng.next_u32(), other.next_u32());
    a.resize(static_cast<std::size_t>(1 + i % 20));
    b.resize(a.size());
  }
}

TEST(Mt19937, UniformsAndU64FollowFromTheWords) {
  Mt19937 words(42);
  Mt19937 rng(42);
  const std::uint32_t first = words.next_u32();
  EXPECT_EQ(rng.next_uniform(), static_cast<float>(first & 0xffffffu) / 16777216.0f);
  const std::uint64_t high = words.next_u32();
  const std::uint64_t low = words.next_u32();
  EXPECT_EQ(rng.next_u64(), (high << 32) | low);
}

// The known answers for philox4x32-10 that come with Random123 (tests/kat_vectors).
TEST(Philox, KnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(philox4x32(ones, ones, ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Mt19937, DrawsTheSameNormalsWithAnyNumberOfThreads) {
  std::vector<float> alone(300007), shared(alone.size());
  Mt19937 first(5), second(5);
  first.fill_normal(alone, 0.5f, 2.0f);
  second.fill_normal(shared, 0.5f, 2.0f, 3);
  EXPECT_EQ(alone, shared);
  EXPECT_EQ(first.next_u32(), second.next_u32());
}

}  // namespace
}  // namespace llmc
