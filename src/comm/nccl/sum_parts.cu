#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "comm/nccl/sum_parts.h"
#include "core/cuda/device_impl.h"

namespace llmc {
namespace {

constexpr int kThreads = 256;

/// Elements that a thread moves at once.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Pack {
  T at[kCount];
};

template <class T>
__device__ float widened(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __bfloat162float(x);
  }
}

template <class T, int kCount>
__global__ void sum_parts_kernel(T* out, Parts parts, int count, std::int64_t packs) {
  using Packed = Pack<T, kCount>;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t p = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; p < packs; p += stride) {
    float sums[kCount] = {};
    for (int r = 0; r < count; ++r) {
      const Packed part = static_cast<const Packed*>(parts.at[r])[p];
      for (int i = 0; i < kCount; ++i) {
        // The first one is taken as it is: 0 + −0 would be 0.
        sums[i] = r == 0 ? widened(part.at[i]) : sums[i] + widened(part.at[i]);
      }
    }
    Packed sum;
    for (int i = 0; i < kCount; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        sum.at[i] = sums[i];
      } else {
        sum.at[i] = __float2bfloat16_rn(sums[i]);
      }
    }
    reinterpret_cast<Packed*>(out)[p] = sum;
  }
}

template <class T, int kCount>
void launch(cudaStream_t stream, void* out, const Parts& parts, int count, std::int64_t packs) {
  constexpr std::int64_t kMostBlocks = 1024;
  const std::int64_t blocks = std::min((packs + kThreads - 1) / kThreads, kMostBlocks);
  sum_parts_kernel<T, kCount><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<T*>(out), parts, count, packs);
  cuda::check_launch("sum of ranks");
}

template <class T>
void sum(cudaStream_t stream, void* out, const Parts& parts, int count, std::int64_t elements) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  std::uintptr_t low_bits = reinterpret_cast<std::uintptr_t>(out);
  for (int r = 0; r < count; ++r) low_bits |= reinterpret_cast<std::uintptr_t>(parts.at[r]);
  if (low_bits % 16 == 0 && elements % kWide == 0) {
    launch<T, kWide>(stream, out, parts, count, elements / kWide);
  } else {
    launch<T, 1>(stream, out, parts, count, elements);
  }
}

}  // namespace

void sum_parts(cudaStream_t stream, void* out, const Parts& parts, int count, std::int64_t elements,
               DType dtype) {
  if (elements == 0) return;
  if (dtype == DType::kF32) {
    sum<float>(stream, out, parts, count, elements);
  } else {
    sum<__nv_bfloat16>(stream, out, parts, count, elements);
  }
}

}  // namespace llmc
