#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace llmc {

/// The Mersenne Twister (Matsumoto and Nishimura, 1998) with PyTorch's conventions for drawing
/// from it, so that a model initialised here starts from the weights PyTorch would draw.
class Mt19937 {
 public:
  explicit Mt19937(std::uint32_t seed);

  std::uint32_t next_u32();
  /// Two draws, the first one in the high half.
  std::uint64_t next_u64();
  /// Uniform in [0, 1) with 24 bits.
  float next_uniform();
  /// Fills with normal draws as torch.Tensor.normal_ does on a CPU: from 16 values on, in blocks of
  /// 16 by Box-Muller with the last block redrawn for a remainder; below, in pairs of doubles, of
  /// which the second one waits for the next such call. The numbers do not depend on `threads`.
  void fill_normal(std::span<float> out, float mean, float stddev, int threads = 1);

  /// The whole state, for checkpoints: 624 words, the index of the next one, whether a normal draw
  /// waits (1 or 0), and the low and high half of its bits.
  using State = std::array<std::uint32_t, 628>;
  State state() const;
  void restore(const State& state);

 private:
  void refill();
  double next_normal();

  std::array<std::uint32_t, 624> words_{};
  std::uint32_t next_ = 624;
  std::optional<double> waiting_normal_;
};

/// Philox4x32-10 (Salmon et al., 2011): four random words that depend on the key and counter only,
/// so any thread or rank can draw any element's numbers.
constexpr std::array<std::uint32_t, 4> philox4x32(std::uint64_t key, std::uint64_t counter_low,
                                                  std::uint64_t counter_high = 0) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  std::array<std::uint32_t, 4> c = {
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace llmc
