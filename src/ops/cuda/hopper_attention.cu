#include "ops/cuda/hopper_attention.h"

#include <cuda.h>

#include <type_traits>

#include "core/cuda/driver.h"
#include "ops/cuda/hopper_backward.cuh"
#include "ops/cuda/hopper_forward.cuh"

namespace llmc::cuda {
namespace {

#ifdef LLMC_HOPPER
constexpr int kProbeThreads = 64;
#else
constexpr int kProbeThreads = 32;
#endif
/// Tells by its bounds whether it was compiled with Hopper's instructions.
__global__ __launch_bounds__(kProbeThreads) void hopper_probe() {}

bool built_for(const Stream::Impl& stream) {
  const Device::Impl& device = stream.device.impl();
  if (device.compute_major != 9 || device.compute_minor != 0) return false;
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(hopper_probe)),
        "attention");
  return attributes.maxThreadsPerBlock == 64;
}

/// Boxes of 64 tokens of a head of a tensor (B, T, heads, HS), for copies to shared memory.
CUtensorMap boxes(const void* data, const AttentionHeads& h, std::int64_t heads) {
  const auto encode = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t shape[] = {size(h.HS), size(heads), size(h.T), size(h.B)};
  const cuuint64_t strides[] = {size(2 * h.HS), size(2 * heads * h.HS),
                                size(2 * h.T * heads * h.HS)};
  const cuuint32_t box[] = {kTileColumns, 1, kTileRows, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), shape, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "attention: tensor map");
  return map;
}

constexpr int kHopperMaxHead = 128;

/// Calls f with the kernels' kHead for heads of this size.
template <class F>
void with_head(std::int64_t head_size, const F& f) {
  if (head_size <= 64) {
    f(std::integral_constant<int, 64>());
  } else if (head_size <= 80) {
    f(std::integral_constant<int, 80>());
  } else if (head_size <= 96) {
    f(std::integral_constant<int, 96>());
  } else {
    f(std::integral_constant<int, kHopperMaxHead>());
  }
}

template <class Kernel>
void allow_shared_memory(Kernel* kernel, int bytes, std::string_view op) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        op);
}

}  // namespace

bool hopper_takes(const Stream::Impl& stream, DType dtype, const AttentionHeads& h) {
  return dtype == DType::kBF16 && h.HS > 32 && h.HS <= kHopperMaxHead && h.HS % 8 == 0 &&
         built_for(stream);
}

bool hopper_suits(const Stream::Impl& stream, const FlashForward& args) {
  const AttentionHeads& h = args.heads;
  const auto* const q = static_cast<const __nv_bfloat16*>(args.q);
  return args.position == 0 && args.k == q + h.NH * h.HS && args.v == q + (h.NH + h.NKV) * h.HS &&
         args.q_token == h.qkv_stride() && args.kv_token == h.qkv_stride() &&
         args.q_sequence == h.T * h.qkv_stride() && args.kv_sequence == h.T * h.qkv_stride() &&
         aligned_rows<__nv_bfloat16>(h.HS, q, args.out) && args.scale > 0 &&
         hopper_takes(stream, args.dtype, h);
}

bool hopper_suits(const Stream::Impl& stream, const FlashBackward& args) {
  const AttentionHeads& h = args.heads;
  return aligned_rows<__nv_bfloat16>(h.HS, args.dqkv, args.dout, args.qkv, args.scratch) &&
         args.scale > 0 && hopper_takes(stream, args.dtype, h);
}

void hopper_attention_forward(Stream::Impl& stream, const FlashForward& args) {
  constexpr const char* kOp = "attention_forward";
  const AttentionHeads& h = args.heads;
  HopperForwardArgs a{};
  a.out = static_cast<__nv_bfloat16*>(args.out);
  a.lse = args.lse;
  a.tokens = static_cast<int>(h.T);
  a.heads = static_cast<int>(h.NH);
  a.kv_heads = static_cast<int>(h.NKV);
  a.head_size = static_cast<int>(h.HS);
  a.scale_log2 = args.scale * kLog2e;
  const CUtensorMap qkv = boxes(args.q, h, h.NH + 2 * h.NKV);
  with_head(h.HS, [&](auto head) {
    using Shape = HopperForwardShape<head>;
    const auto kernel = hopper_forward_kernel<head>;
    allow_shared_memory(kernel, Shape::kBytes, kOp);
    const auto blocks = static_cast<unsigned>(h.B * h.NH * ceil_div(h.T, Shape::kQueries));
    kernel<<<blocks, Shape::kThreads, Shape::kBytes, stream.stream>>>(qkv, a);
  });
  check_launch(kOp);
}

void hopper_attention_backward(Stream::Impl& stream, const FlashBackward& args,
                               const float2* rows) {
  constexpr const char* kOp = "attention_backward";
  const AttentionHeads& h = args.heads;
  HopperBackwardArgs a{};
  a.dqkv = static_cast<__nv_bfloat16*>(args.dqkv);
  a.rows = rows;
  a.tokens = static_cast<int>(h.T);
  a.padded_tokens = static_cast<int>(flash_padded_tokens(h.T));
  a.heads = static_cast<int>(h.NH);
  a.kv_heads = static_cast<int>(h.NKV);
  a.head_size = static_cast<int>(h.HS);
  a.scale = args.scale;
  const CUtensorMap qkv = boxes(args.qkv, h, h.NH + 2 * h.NKV);
  const CUtensorMap dout = boxes(args.dout, h, h.NH);
  const std::int64_t tiles = h.B * (a.padded_tokens / kTileRows);
  const auto dkdv_blocks = static_cast<unsigned>(tiles * h.NKV);
  const auto dq_blocks = static_cast<unsigned>(tiles * h.NH);
  with_head(h.HS, [&](auto head) {
    constexpr int kBytes = HopperBackwardShape<head>::kBytes;
    const auto dkdv = hopper_dkdv_kernel<head>;
    const auto dq = hopper_dq_kernel<head>;
    allow_shared_memory(dkdv, kBytes, kOp);
    allow_shared_memory(dq, kBytes, kOp);
    dkdv<<<dkdv_blocks, kWarpGroup, kBytes, stream.stream>>>(qkv, dout, a);
    dq<<<dq_blocks, kWarpGroup, kBytes, stream.stream>>>(qkv, dout, a);
  });
  check_launch(kOp);
}

}  // namespace llmc::cuda
