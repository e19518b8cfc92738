#include "ops/cuda/flash_attention.h"
#include "ops/cuda/kernel.cuh"

namespace llmc::cuda {
namespace {

constexpr int kThreads = 256;
/// Lanes that take a row of dout and out together.
constexpr int kLanes = 8;

/// rows: (B, NH, padded). dout, out: (B, T, NH, HS); lse: (B, NH, T).
template <class T>
__global__ __launch_bounds__(kThreads) void prepare_kernel(float2* rows, const T* dout,
                                                           const T* out, const float* lse,
                                                           std::int64_t n_rows, int tokens,
                                                           int padded, int heads, int head_size,
                                                           bool aligned) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = thread / kLanes;
  const int lane = static_cast<int>(thread % kLanes);
  const std::int64_t head = row % heads;
  const std::int64_t token = row / heads % padded;
  const std::int64_t b = row / heads / padded;
  const bool valid = row < n_rows && token < tokens;
  float sum = 0.0f;
  if (valid) {
    const std::int64_t at = ((b * tokens + token) * heads + head) * head_size;
    if (aligned) {
      for (int i = lane * kVec<T>; i < head_size; i += kLanes * kVec<T>) {
        const auto x = Vec<T>::load(dout + at + i);
        const auto y = Vec<T>::load(out + at + i);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) sum = fmaf(x.get(e), y.get(e), sum);
      }
    } else {
      for (int i = lane; i < head_size; i += kLanes) {
        sum = fmaf(to_float(dout[at + i]), to_float(out[at + i]), sum);
      }
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (row < n_rows && lane == 0) {
    // Rows behind the last token get probability 0.
    const std::int64_t head_of_all = b * heads + head;
    rows[head_of_all * padded + token] =
        valid ? make_float2(lse[head_of_all * tokens + token] * kLog2e, sum)
              : make_float2(INFINITY, 0.0f);
  }
}

template <class T>
void launch(Stream::Impl& stream, const FlashBackward& args, float2* rows) {
  const AttentionHeads& h = args.heads;
  const std::int64_t padded = flash_padded_tokens(h.T);
  const std::int64_t n_rows = h.B * padded * h.NH;
  const auto blocks = static_cast<unsigned>(ceil_div(n_rows * kLanes, kThreads));
  const T* const dout = static_cast<const T*>(args.dout);
  const T* const out = static_cast<const T*>(args.out);
  prepare_kernel<T><<<blocks, kThreads, 0, stream.stream>>>(
      rows, dout, out, args.lse, n_rows, static_cast<int>(h.T), static_cast<int>(padded),
      static_cast<int>(h.NH), static_cast<int>(h.HS), aligned_rows<T>(h.HS, dout, out));
}

}  // namespace

const float2* flash_prepare(Stream::Impl& stream, const FlashBackward& args) {
  float2* const rows = static_cast<float2*>(args.scratch);
  if (args.dtype == DType::kF32) {
    launch<float>(stream, args, rows);
  } else {
    launch<__nv_bfloat16>(stream, args, rows);
  }
  check_launch("attention_backward");
  return rows;
}

}  // namespace llmc::cuda
