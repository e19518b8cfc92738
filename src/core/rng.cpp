#include "llmc/core/rng.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <thread>
#include <utility>
#include <vector>

namespace llmc {
namespace {

constexpr std::size_t kWords = 624;
constexpr std::size_t kMiddle = 397;

constexpr std::size_t kBlock = 16;
/// A thread that transforms fewer blocks than these takes longer to start than to work.
constexpr std::size_t kBlocksPerThread = 4096;

/// Box-Muller on a block of 16 uniforms, in place: the first half are radii, the second angles.
void normal_block(float* x, float mean, float stddev) {
  for (int j = 0; j < 8; ++j) {
    const float u1 = 1.0f - x[j];
    const float u2 = x[j + 8];
    const float radius = std::sqrt(-2.0f * std::log(u1));
    const float theta = 2.0f * std::numbers::pi_v<float> * u2;
    x[j] = radius * std::cos(theta) * stddev + mean;
    x[j + 8] = radius * std::sin(theta) * stddev + mean;
  }
}

void normal_blocks(std::span<float> x, float mean, float stddev, int threads) {
  const auto transform = [&](std::size_t begin, std::size_t end) {
    for (std::size_t block = begin; block < end; ++block) {
      normal_block(&x[block * kBlock], mean, stddev);
    }
  };
  const std::size_t blocks = x.size() / kBlock;
  const std::size_t parts = std::clamp<std::size_t>(blocks / kBlocksPerThread, 1,
                                                    static_cast<std::size_t>(std::max(threads, 1)));
  std::vector<std::jthread> others;
  for (std::size_t part = 1; part < parts; ++part) {
    others.emplace_back(transform, blocks * part / parts, blocks * (part + 1) / parts);
  }
  transform(0, blocks / parts);
}

}  // namespace

Mt19937::Mt19937(std::uint32_t seed) {
  words_[0] = seed;
  for (std::uint32_t i = 1; i < kWords; ++i) {
    words_[i] = 1812433253u * (words_[i - 1] ^ (words_[i - 1] >> 30)) + i;
  }
}

void Mt19937::refill() {
  const auto twist = [this](std::size_t i, std::size_t next, std::size_t middle) {
    const std::uint32_t y = (words_[i] & 0x80000000u) | (words_[next] & 0x7fffffffu);
    words_[i] = words_[middle] ^ (y >> 1) ^ ((y & 1u) * 0x9908b0dfu);
  };
  // (i + 1) and (i + kMiddle) modulo kWords, without the divisions.
  for (std::size_t i = 0; i < kWords - kMiddle; ++i) twist(i, i + 1, i + kMiddle);
  for (std::size_t i = kWords - kMiddle; i + 1 < kWords; ++i) {
    twist(i, i + 1, i + kMiddle - kWords);
  }
  twist(kWords - 1, 0, kMiddle - 1);
  next_ = 0;
}

std::uint32_t Mt19937::next_u32() {
  if (next_ >= kWords) refill();
  std::uint32_t y = words_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

std::uint64_t Mt19937::next_u64() {
  const std::uint64_t high = next_u32();
  return (high << 32) | next_u32();
}

float Mt19937::next_uniform() {
  return static_cast<float>(next_u32() & 0xffffffu) * (1.0f / 16777216.0f);
}

void Mt19937::fill_normal(std::span<float> out, float mean, float stddev, int threads) {
  const std::size_t n = out.size();
  if (n >= kBlock) {
    for (float& x : out) x = next_uniform();
    normal_blocks(out, mean, stddev, threads);
    if (n % kBlock != 0) {
      float* last = &out[n - kBlock];
      for (std::size_t i = 0; i < kBlock; ++i) last[i] = next_uniform();
      normal_block(last, mean, stddev);
    }
    return;
  }
  for (float& x : out) x = static_cast<float>(next_normal() * stddev + mean);
}

double Mt19937::next_normal() {
  if (waiting_normal_) return *std::exchange(waiting_normal_, std::nullopt);
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 53) - 1;
  const double u1 = static_cast<double>(next_u64() & kMask) * 0x1p-53;
  const double u2 = static_cast<double>(next_u64() & kMask) * 0x1p-53;
  const double radius = std::sqrt(-2.0 * std::log1p(-u2));
  const double theta = 2.0 * std::numbers::pi * u1;
  waiting_normal_ = radius * std::sin(theta);
  return radius * std::cos(theta);
}

Mt19937::State Mt19937::state() const {
  State state;
  std::copy(words_.begin(), words_.end(), state.begin());
  const auto waiting = std::bit_cast<std::uint64_t>(waiting_normal_.value_or(0.0));
  state[kWords] = next_;
  state[kWords + 1] = waiting_normal_.has_value() ? 1 : 0;
  state[kWords + 2] = static_cast<std::uint32_t>(waiting);
  state[kWords + 3] = static_cast<std::uint32_t>(waiting >> 32);
  return state;
}

void Mt19937::restore(const State& state) {
  std::copy_n(state.begin(), words_.size(), words_.begin());
  next_ = state[kWords];
  waiting_normal_.reset();
  if (state[kWords + 1] != 0) {
    const std::uint64_t high = state[kWords + 3];
    waiting_normal_ = std::bit_cast<double>((high << 32) | state[kWords + 2]);
  }
}

}  // namespace llmc
