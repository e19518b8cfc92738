#pragma once

// What the kernels share: vectors of 16 bytes, reductions in a fixed order, launch shapes.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "core/cuda/device_impl.h"
#include "llmc/core/error.h"
#include "llmc/core/tensor.h"

namespace llmc::cuda {

inline constexpr int kWarp = 32;

/// Elements of T in a 16-byte access.
template <class T>
inline constexpr int kVec = 16 / static_cast<int>(sizeof(T));

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}

/// N consecutive elements, loaded and stored with accesses of 16 bytes (or all at once if they are
/// fewer) at an address aligned to that.
template <class T, int N = kVec<T>>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vec {
  T at[N];

  __device__ static Vec load(const T* p) { return *reinterpret_cast<const Vec*>(p); }
  /// A load of data that is read once and should not displace what is in the caches.
  __device__ static Vec load_once(const T* p) {
    static_assert(sizeof(Vec) == 16);
    const int4 raw = __ldcs(reinterpret_cast<const int4*>(p));
    return *reinterpret_cast<const Vec*>(&raw);
  }
  __device__ void store(T* p) const { *reinterpret_cast<Vec*>(p) = *this; }
  __device__ float get(int i) const {
    if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {
      // Taken out of its register by one shift or mask.
      std::uint32_t pair;
      std::memcpy(&pair, &at[i - i % 2], sizeof(pair));
      return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    } else {
      return to_float(at[i]);
    }
  }
  __device__ void set(int i, float x) { at[i] = from_float<T>(x); }
};

/// Whether every address and count allows 16-byte accesses to rows of `columns` elements.
template <class T, class... Pointers>
bool aligned_rows(std::int64_t columns, const Pointers*... pointers) {
  const bool addresses = ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
  return addresses && columns % kVec<T> == 0;
}

/// The same value in every lane of a warp. Lanes are added in a fixed order.
template <class X>
__device__ X warp_sum(X x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

/// The same value in every thread of a block of kThreads threads, added in a fixed order.
/// `partials`: shared memory of kThreads / kWarp values; may be reused after the next barrier.
template <int kThreads, class X>
__device__ X block_sum(X x, X* partials) {
  static_assert(kThreads % kWarp == 0);
  x = warp_sum(x);
  if constexpr (kThreads == kWarp) return x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) partials[warp] = x;
  __syncthreads();
  return warp_sum(lane < kThreads / kWarp ? partials[lane] : X{});
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Blocks for `items` units of work, `per_block` a block, at most `waves` full loads of the GPU;
/// kernels stride over the rest.
inline unsigned grid_of(const Stream::Impl& stream, std::int64_t items, std::int64_t per_block,
                        std::int64_t waves = 16) {
  const std::int64_t wanted = ceil_div(items, per_block);
  const std::int64_t most = waves * stream.processors();
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/// The kernels' type for a dtype of tensors.
template <class Fn>
void with_float_type(std::string_view op, std::string_view name, const Tensor& tensor,
                     const Fn& fn) {
  switch (tensor.dtype()) {
    case DType::kF32:
      return fn(std::type_identity<float>());
    case DType::kBF16:
      return fn(std::type_identity<__nv_bfloat16>());
    default:
      fail(ErrorKind::kInput, op, name, ": expected f32 or bf16, got ", name_of(tensor.dtype()));
  }
}

/// The elements of a tensor as kernels see them.
template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

}  // namespace llmc::cuda
