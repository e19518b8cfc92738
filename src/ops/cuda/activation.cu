#include "llmc/ops/activation.h"

#include <algorithm>

#include "ops/check.h"
#include "ops/cuda/gelu.cuh"
#include "ops/cuda/kernel.cuh"

namespace llmc {
namespace cuda {
namespace {

constexpr int kThreads = 256;

/// Vectors of N elements that a thread loads before it computes: four accesses in flight.
template <bool kTwo>
constexpr int kVectors = kTwo ? 2 : 4;

/// out[i] = fn(a[i]) or, with kTwo, fn(a[i], b[i]). A block takes kVectors·kThreads neighbouring
/// vectors, the last one also the n % N elements after the last vector.
template <int N, bool kTwo, class Out, class In, class Fn>
__global__ void __launch_bounds__(kThreads)
    map_kernel(Out* out, const In* a, const In* b, std::int64_t n, Fn fn) {
  const auto apply = [&](float x, float y) {
    if constexpr (kTwo) {
      return fn(x, y);
    } else {
      return fn(x);
    }
  };
  const std::int64_t vectors = n / N;
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads * kVectors<kTwo>)+threadIdx.x;
  Vec<In, N> x[kVectors<kTwo>];
  Vec<In, N> y[kVectors<kTwo>];
#pragma unroll
  for (int k = 0; k < kVectors<kTwo>; ++k) {
    const std::int64_t v = first + k * kThreads;
    if (v >= vectors) break;
    x[k] = Vec<In, N>::load(a + v * N);
    if constexpr (kTwo) y[k] = Vec<In, N>::load(b + v * N);
  }
#pragma unroll
  for (int k = 0; k < kVectors<kTwo>; ++k) {
    const std::int64_t v = first + k * kThreads;
    if (v >= vectors) break;
    Vec<Out, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) result.set(i, apply(x[k].get(i), kTwo ? y[k].get(i) : 0.0f));
    result.store(out + v * N);
  }
  const std::int64_t i = vectors * N + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && i < n) {
    out[i] = from_float<Out>(apply(to_float(a[i]), kTwo ? to_float(b[i]) : 0.0f));
  }
}

template <bool kTwo, class Out, class In, class Fn>
void map(Stream& stream, const char* op, const Tensor& out, const Tensor& a, const Tensor& b,
         Fn fn) {
  const std::int64_t n = out.numel();
  if (n == 0) return;
  const CurrentDevice current(stream.impl().ordinal());
  const auto launch = [&](auto width) {
    constexpr int kN = decltype(width)::value;
    const std::int64_t blocks = ceil_div(ceil_div(n, kN), kThreads * kVectors<kTwo>);
    map_kernel<kN, kTwo><<<static_cast<unsigned>(blocks), kThreads, 0, stream.impl().stream>>>(
        pointer<Out>(out), pointer<const In>(a), pointer<const In>(b), n, fn);
  };
  if (aligned_rows<char>(0, pointer<char>(out), pointer<char>(a), pointer<char>(b))) {
    launch(std::integral_constant<int, std::min(kVec<Out>, kVec<In>)>());
  } else {
    launch(std::integral_constant<int, 1>());
  }
  check_launch(op);
}

struct GeluForward {
  __device__ float operator()(float x) const { return Gelu(x).value; }
};
struct GeluBackward {
  __device__ float operator()(float dout, float x) const {
    return __fmul_rn(dout, Gelu(x).gradient());
  }
};
struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Identity {
  __device__ float operator()(float x) const { return x; }
};

}  // namespace
}  // namespace cuda

void gelu_forward(Stream& stream, const Tensor& out, const Tensor& in) {
  constexpr const char* kOp = "gelu_forward";
  cuda::with_float_type(kOp, "in", in, [&]<class T>(std::type_identity<T>) {
    expect_count(kOp, "out", out, in.dtype(), in.numel());
    cuda::map<false, T, T>(stream, kOp, out, in, {}, cuda::GeluForward());
  });
}

void gelu_backward(Stream& stream, const Tensor& din, const Tensor& dout, const Tensor& in) {
  constexpr const char* kOp = "gelu_backward";
  cuda::with_float_type(kOp, "in", in, [&]<class T>(std::type_identity<T>) {
    expect_count(kOp, "din", din, in.dtype(), in.numel());
    expect_count(kOp, "dout", dout, in.dtype(), in.numel());
    cuda::map<true, T, T>(stream, kOp, din, dout, in, cuda::GeluBackward());
  });
}

void add(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b) {
  constexpr const char* kOp = "add";
  cuda::with_float_type(kOp, "a", a, [&]<class T>(std::type_identity<T>) {
    expect_count(kOp, "b", b, a.dtype(), a.numel());
    expect_count(kOp, "out", out, a.dtype(), a.numel());
    cuda::map<true, T, T>(stream, kOp, out, a, b, cuda::Add());
  });
}

void convert(Stream& stream, const Tensor& out, const Tensor& in) {
  constexpr const char* kOp = "convert";
  expect_float(kOp, "out", out);
  expect_float(kOp, "in", in);
  expect_count(kOp, "out", out, out.dtype(), in.numel());
  if (out.dtype() == in.dtype()) {
    copy(stream, out, in);
  } else if (in.dtype() == DType::kBF16) {
    cuda::map<false, float, __nv_bfloat16>(stream, kOp, out, in, {}, cuda::Identity());
  } else {
    cuda::map<false, __nv_bfloat16, float>(stream, kOp, out, in, {}, cuda::Identity());
  }
}

}  // namespace llmc
