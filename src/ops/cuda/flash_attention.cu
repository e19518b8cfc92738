#include "ops/cuda/flash_attention.h"

#include "ops/cuda/flash_launch.cuh"
#include "ops/cuda/hopper_attention.h"

namespace llmc::cuda {

// One translation unit for each kind of product.
extern template void launch_flash_forward<Bf16Products>(Stream::Impl&, const FlashForward&);
extern template void launch_flash_forward<F32Products>(Stream::Impl&, const FlashForward&);
extern template void launch_flash_forward<Tf32Products>(Stream::Impl&, const FlashForward&);
extern template void launch_flash_backward<Bf16Products>(Stream::Impl&, const FlashBackward&,
                                                         const float2*);
extern template void launch_flash_backward<F32Products>(Stream::Impl&, const FlashBackward&,
                                                        const float2*);
extern template void launch_flash_backward<Tf32Products>(Stream::Impl&, const FlashBackward&,
                                                         const float2*);

void flash_attention_forward(Stream::Impl& stream, const FlashForward& args) {
  if (args.dtype == DType::kF32) {
    if (stream.tf32) {
      launch_flash_forward<Tf32Products>(stream, args);
    } else {
      launch_flash_forward<F32Products>(stream, args);
    }
  } else if (hopper_suits(stream, args)) {
    hopper_attention_forward(stream, args);
  } else {
    launch_flash_forward<Bf16Products>(stream, args);
  }
}

std::int64_t flash_attention_backward_scratch(std::int64_t batch, std::int64_t tokens,
                                              std::int64_t n_head) {
  return batch * n_head * flash_padded_tokens(tokens) * static_cast<std::int64_t>(sizeof(float2));
}

void flash_attention_backward(Stream::Impl& stream, const FlashBackward& args) {
  const float2* const rows = flash_prepare(stream, args);
  if (args.dtype == DType::kF32) {
    if (stream.tf32) {
      launch_flash_backward<Tf32Products>(stream, args, rows);
    } else {
      launch_flash_backward<F32Products>(stream, args, rows);
    }
  } else if (hopper_suits(stream, args)) {
    hopper_attention_backward(stream, args, rows);
  } else {
    launch_flash_backward<Bf16Products>(stream, args, rows);
  }
}

}  // namespace llmc::cuda
