#include "ops/cpu/kernels/optimizer_kernels.h"

#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {
namespace {

typedef std::uint64_t VecQ __attribute__((vector_size(kWidth * 8)));

template <class T>
float sum_of_squares(const T* values, std::int64_t n) {
  return sum_over(n, [&](std::int64_t i, auto lanes) {
    const VecF x = load(values + i, lanes);
    return x * x;
  });
}

template <class T>
void adamw(float* theta, float* m, float* v, const T* grad, std::int64_t n,
           const AdamWFactors& factors) {
  const AdamWFactors f = factors;
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    const VecF g = load(grad + i, lanes) * f.grad_scale;
    const VecF m_old = load(m + i, lanes);
    const VecF v_old = load(v + i, lanes);
    const VecF m_new = m_old + (1.0f - f.beta1) * (g - m_old);
    const VecF v_new = v_old + (1.0f - f.beta2) * (g * g - v_old);
    store(m + i, m_new, lanes);
    store(v + i, v_new, lanes);
    const VecF old = load(theta + i, lanes);
    const VecF step = m_new * f.bias1 / (sqrt(v_new * f.bias2) + f.eps) + f.weight_decay * old;
    store(theta + i, old - f.lr * step, lanes);
  });
}

/// Philox4x32-10 of kWidth consecutive counters from `counter`, one per lane.
void philox(VecU words[4], std::uint64_t key, std::uint64_t counter, std::uint64_t counter_high) {
  VecQ low{};
  for (int lane = 0; lane < kWidth; ++lane) low[lane] = counter + static_cast<unsigned>(lane);
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  VecU c0 = __builtin_convertvector(low, VecU);
  VecU c1 = __builtin_convertvector(low >> 32, VecU);
  VecU c2 = VecU{} + static_cast<std::uint32_t>(counter_high);
  VecU c3 = VecU{} + static_cast<std::uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const VecQ p0 = __builtin_convertvector(c0, VecQ) * 0xD2511F53u;
    const VecQ p1 = __builtin_convertvector(c2, VecQ) * 0xCD9E8D57u;
    c0 = __builtin_convertvector(p1 >> 32, VecU) ^ c1 ^ k0;
    c1 = __builtin_convertvector(p1, VecU);
    c2 = __builtin_convertvector(p0 >> 32, VecU) ^ c3 ^ k1;
    c3 = __builtin_convertvector(p0, VecU);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

constexpr int kPerCounter = 8;
constexpr int kNoise = kPerCounter * kWidth;

/// The 16-bit noise of kNoise elements from number `first`, a multiple of 8.
void draw_noise(std::uint32_t* noise, std::uint64_t seed, std::int64_t first, std::int64_t step) {
  VecU words[4];
  philox(words, seed, static_cast<std::uint64_t>(first) / kPerCounter,
         static_cast<std::uint64_t>(step));
  for (int lane = 0; lane < kWidth; ++lane) {
    for (int w = 0; w < 4; ++w) {
      noise[lane * kPerCounter + 2 * w] = words[w][lane] & 0xffffu;
      noise[lane * kPerCounter + 2 * w + 1] = words[w][lane] >> 16;
    }
  }
}

void round_stochastically(bf16* out, const float* in, std::int64_t n, std::uint64_t seed,
                          std::int64_t first_index, std::int64_t step) {
  std::uint32_t noise[kNoise];
  std::int64_t done = 0;
  while (done < n) {
    const std::int64_t skipped = (first_index + done) % kPerCounter;
    draw_noise(noise, seed, first_index + done - skipped, step);
    const std::int64_t count = n - done < kNoise - skipped ? n - done : kNoise - skipped;
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint32_t u;
      std::memcpy(&u, in + done + i, sizeof u);
      const bool finite = (u & 0x7f800000u) != 0x7f800000u;
      const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
      if (finite) u += noise[skipped + i];
      out[done + i].bits = static_cast<std::uint16_t>((u >> 16) | (nan ? 0x40u : 0u));
    }
    done += count;
  }
}

}  // namespace

template <class T>
const OptimizerKernels<T>& optimizer_kernels() {
  static constexpr OptimizerKernels<T> kTable = {sum_of_squares<T>, adamw<T>, round_stochastically};
  return kTable;
}
template const OptimizerKernels<float>& optimizer_kernels();
template const OptimizerKernels<bf16>& optimizer_kernels();

}  // namespace llmc::cpu::LLMC_ISA
