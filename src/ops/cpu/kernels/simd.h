#pragma once

// A short vector of floats as wide as the instruction set this file is compiled for, written with
// the compilers' vector types so that one source serves all of them. Everything stands in the
// namespace llmc::cpu::LLMC_ISA: no two instruction sets may share an inline function.

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

/// Which lanes a load or store touches: all, or the first `count` < kWidth.
struct Full {};
struct Partial {
  std::int64_t count;
};

inline VecF load(const float* p, Full = {}) {
  VecF v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, VecF v, Full = {}) {
  std::memcpy(p, &v, sizeof v);
}

inline VecF load(const bf16* p, Full = {}) {
  VecH h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<VecF>(__builtin_convertvector(h, VecU) << 16);
}
/// Rounds to nearest even; NaN stays NaN.
inline void store(bf16* p, VecF v, Full = {}) {
  const auto u = reinterpret_cast<VecU>(v);
  const VecU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const VecU quiet = (u >> 16) | 0x40u;
  const auto is_nan = reinterpret_cast<VecU>(v != v);
  const VecH h = __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), VecH);
  std::memcpy(p, &h, sizeof h);
}

/// The lanes past the count are `fill`, which bf16 must hold exactly.
inline VecF load(const float* p, Partial part, float fill = 0.0f) {
  float lanes[kWidth];
  store(lanes, splat(fill));
  std::memcpy(lanes, p, static_cast<std::size_t>(part.count) * sizeof(float));
  return load(lanes);
}
inline VecF load(const bf16* p, Partial part, float fill = 0.0f) {
  bf16 lanes[kWidth];
  store(lanes, splat(fill));
  std::memcpy(lanes, p, static_cast<std::size_t>(part.count) * sizeof(bf16));
  return load(lanes);
}
template <class T>
inline VecF load(const T* p, Full, float /*fill*/) {
  return load(p);
}
template <class T>
inline void store(T* p, VecF v, Partial part) {
  T lanes[kWidth];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<std::size_t>(part.count) * sizeof(T));
}

template <class T>
inline VecF load_partial(const T* p, std::int64_t n) {
  return load(p, Partial{n});
}
template <class T>
inline void store_partial(T* p, VecF v, std::int64_t n) {
  store(p, v, Partial{n});
}

/// One element. The scalar conversions of dtype.h are shared by all instruction sets, so kernels
/// use these.
inline float get(const float* p) {
  return *p;
}
inline float get(const bf16* p) {
  const std::uint32_t bits = static_cast<std::uint32_t>(p->bits) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
template <class T>
inline void put(T* p, float x) {
  store(p, splat(x), Partial{1});
}

/// 0, 1, 2, … in the lanes.
inline VecI lane_numbers() {
  VecI v{};
  for (int i = 0; i < kWidth; ++i) v[i] = i;
  return v;
}

/// x with zeros in the lanes past the count.
inline VecF keep(VecF x, Full) {
  return x;
}
inline VecF keep(VecF x, Partial part) {
  const VecI kept = lane_numbers() < static_cast<std::int32_t>(part.count);
  return reinterpret_cast<VecF>(reinterpret_cast<VecI>(x) & kept);
}

/// Calls fn(i, lanes) for i = 0, kWidth, …: with Full while a whole vector is left of n elements,
/// then once with the Partial rest.
template <class Fn>
inline void for_vectors(std::int64_t n, const Fn& fn) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) fn(i, Full{});
  if (i < n) fn(i, Partial{n - i});
}

// `a > b ? a : b` for the lanes: a NaN in b stays, one in a is dropped. The AVX-512 forms with a
// full mask are the plain instructions, without the warnings that g++ 12 gives about its own
// header.
#if defined(__AVX512F__)
inline VecF max(VecF a, VecF b) {
  return _mm512_mask_max_ps(a, 0xffff, a, b);
}
inline VecF min(VecF a, VecF b) {
  return _mm512_mask_min_ps(a, 0xffff, a, b);
}
inline VecF sqrt(VecF a) {
  return _mm512_mask_sqrt_ps(a, 0xffff, a);
}
#elif defined(__AVX2__)
inline VecF max(VecF a, VecF b) {
  return _mm256_max_ps(a, b);
}
inline VecF min(VecF a, VecF b) {
  return _mm256_min_ps(a, b);
}
inline VecF sqrt(VecF a) {
  return _mm256_sqrt_ps(a);
}
#elif defined(__x86_64__)
inline VecF max(VecF a, VecF b) {
  return _mm_max_ps(a, b);
}
inline VecF min(VecF a, VecF b) {
  return _mm_min_ps(a, b);
}
inline VecF sqrt(VecF a) {
  return _mm_sqrt_ps(a);
}
#else
inline VecF max(VecF a, VecF b) {
  return a > b ? a : b;
}
inline VecF min(VecF a, VecF b) {
  return a < b ? a : b;
}
inline VecF sqrt(VecF a) {
  for (int i = 0; i < kWidth; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
}
#endif

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

/// Sum over n elements of term(i, lanes), a VecF whose lanes past the end must be 0. Four partial
/// vectors hide the latency of the additions; their order is fixed.
template <class Term>
inline float sum_over(std::int64_t n, const Term& term) {
  VecF a{}, b{}, c{}, d{};
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    a += term(i, Full{});
    b += term(i + kWidth, Full{});
    c += term(i + 2 * kWidth, Full{});
    d += term(i + 3 * kWidth, Full{});
  }
  for (; i + kWidth <= n; i += kWidth) a += term(i, Full{});
  if (i < n) b += term(i, Partial{n - i});
  return sum((a + b) + (c + d));
}

/// e^x to about 1 ulp; 0 below −87.7, e^88 above 88 (so that no lane becomes infinite); NaN stays
/// NaN.
inline VecF exp(VecF x) {
  const VecF clamped = min(splat(88.0f), max(splat(-88.0f), x));
  // 2^n · e^r, |r| ≤ ln(2)/2. Adding 1.5·2^23 rounds to an integer and leaves it in the low bits,
  // with the exponent's bias of 127 on top; n = −127 gives the bits of 0.
  const VecF shifted = clamped * 1.44269504f + (12582912.0f + 127.0f);
  const VecF n = shifted - (12582912.0f + 127.0f);
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
  return p * reinterpret_cast<VecF>(reinterpret_cast<VecU>(shifted) << 23);
}

}  // namespace llmc::cpu::LLMC_ISA
