#include "ops/cuda/flash_attention.h"

#include "ops/cuda/flash_launch.cuh"

namespace llmc::cuda {

// One translation unit for each kind of product.
extern template void launch_flash_forward<Bf16Products>(Stream::Impl&, const FlashForward&);
extern template void launch_flash_forward<F32Products>(Stream::Impl&, const FlashForward&);
extern template void launch_flash_forward<Tf32Products>(Stream::Impl&, const FlashForward&);
extern template void launch_flash_backward<Bf16Products>(Stream::Impl&, const FlashBackward&);
extern template void launch_flash_backward<F32Products>(Stream::Impl&, const FlashBackward&);
extern template void launch_flash_backward<Tf32Products>(Stream::Impl&, const FlashBackward&);

void flash_attention_forward(Stream::Impl& stream, const FlashForward& args) {
  if (args.dtype == DType::kBF16) {
    launch_flash_forward<Bf16Products>(stream, args);
  } else if (stream.tf32) {
    launch_flash_forward<Tf32Products>(stream, args);
  } else {
    launch_flash_forward<F32Products>(stream, args);
  }
}

void flash_attention_backward(Stream::Impl& stream, const FlashBackward& args) {
  if (args.dtype == DType::kBF16) {
    launch_flash_backward<Bf16Products>(stream, args);
  } else if (stream.tf32) {
    launch_flash_backward<Tf32Products>(stream, args);
  } else {
    launch_flash_backward<F32Products>(stream, args);
  }
}

std::int64_t flash_attention_backward_scratch(std::int64_t batch, std::int64_t n_head,
                                              std::int64_t tokens, std::int64_t head_size) {
  return FlashScratch(batch * n_head, tokens, head_size).bytes;
}

}  // namespace llmc::cuda
