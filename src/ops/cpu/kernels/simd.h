#pragma once

// A short vector of floats as wide as the instruction set this file is compiled for, written with
// the compilers' vector types so that one source serves all of them. Everything stands in the
// namespace llmc::cpu::LLMC_ISA: no two instruction sets may share an inline function.

#include <cstdint>
#include <cstring>

#include "llmc/core/dtype.h"

namespace llmc::cpu::LLMC_ISA {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

typedef float VecF __attribute__((vector_size(kWidth * 4)));
typedef std::int32_t VecI __attribute__((vector_size(kWidth * 4)));
typedef std::uint32_t VecU __attribute__((vector_size(kWidth * 4)));
typedef std::uint16_t VecH __attribute__((vector_size(kWidth * 2)));

inline VecF splat(float x) {
  return x - VecF{};  // x − 0 is x to the bit, so that only a broadcast is left
}

inline VecF load(const float* p) {
  VecF v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, VecF v) {
  std::memcpy(p, &v, sizeof v);
}

inline VecF load(const bf16* p) {
  VecH h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<VecF>(__builtin_convertvector(h, VecU) << 16);
}
/// Rounds to nearest even; NaN stays NaN.
inline void store(bf16* p, VecF v) {
  const auto u = reinterpret_cast<VecU>(v);
  const VecU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const VecU quiet = (u >> 16) | 0x40u;
  const VecU is_nan = reinterpret_cast<VecU>(v != v);
  const VecH h = __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), VecH);
  std::memcpy(p, &h, sizeof h);
}

/// The first n < kWidth elements; the others are `fill`.
template <class T>
inline VecF load_partial(const T* p, std::int64_t n, float fill = 0.0f) {
  VecF v = splat(fill);
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(T) == 4) {
      v[i] = p[i];
    } else {
      v[i] = to_f32(p[i]);
    }
  }
  return v;
}
template <class T>
inline void store_partial(T* p, VecF v, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(T) == 4) {
      p[i] = v[i];
    } else {
      p[i] = to_bf16(v[i]);
    }
  }
}

inline VecF max(VecF a, VecF b) {
  return a > b ? a : b;
}
inline VecF min(VecF a, VecF b) {
  return a < b ? a : b;
}

/// Sum of the lanes in a fixed order: halves are folded onto each other.
inline float sum(VecF v) {
  float lanes[kWidth];
  store(lanes, v);
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}
inline float max_lane(VecF v) {
  float result = v[0];
  for (int i = 1; i < kWidth; ++i) result = v[i] > result ? v[i] : result;
  return result;
}

/// e^x to about 1 ulp; 0 below −87.3, e^88 above 88 (so that no lane becomes infinite); NaN stays
/// NaN.
inline VecF exp(VecF x) {
  const VecF clamped = min(max(x, splat(-87.33654f)), splat(88.0f));
  // 2^n · e^r, |r| ≤ ln(2)/2; n by adding 1.5·2^23, which leaves the integer in the low bits.
  const VecF shifted = clamped * 1.44269504f + 12582912.0f;
  const VecF n = shifted - 12582912.0f;
  VecF r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  // Minimax polynomial of (e^r − 1 − r) / r² on that interval (Cephes, expf).
  VecF p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const VecI exponent = (reinterpret_cast<VecI>(shifted) + 127) << 23;
  const VecF result = p * reinterpret_cast<VecF>(exponent);
  const VecF flushed = x < splat(-87.33654f) ? VecF{} : result;
  return x == x ? flushed : x;
}

/// tanh(x) = 1 − 2 / (e^2x + 1), odd by construction, by the polynomial x + x³·p(x²) near 0.
inline VecF tanh(VecF x) {
  const auto sign = reinterpret_cast<VecU>(x) & 0x80000000u;
  const VecF a = reinterpret_cast<VecF>(reinterpret_cast<VecU>(x) ^ sign);
  const VecF large = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  const VecF s = a * a;
  // Cephes, tanhf: valid for |x| < 0.625.
  VecF p = splat(-5.70498872745e-3f);
  p = p * s + 2.06390887954e-2f;
  p = p * s + -5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s + -3.33332819422e-1f;
  const VecF small = p * s * a + a;
  const VecF result = a < splat(0.625f) ? small : large;
  return reinterpret_cast<VecF>(reinterpret_cast<VecU>(result) | sign);
}

}  // namespace llmc::cpu::LLMC_ISA
