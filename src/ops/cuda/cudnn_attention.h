#pragma once

#include <cstdint>

#include "core/cuda/device_impl.h"
#include "ops/cuda/flash_attention.h"

namespace llmc::cuda {

// Attention by cuDNN's fused kernels (CUDNN, the vendor's library), for bf16. It has the same
// inputs and results as this library's own kernels, lse included, so that either can follow the
// other. The first call for some sizes compiles a kernel, which takes about half a second.
//
// cuDNN does not take every case. A function then does nothing and says so, and the caller uses the
// own kernels; where Device::Impl::attention asks for cuDNN, it throws a config error instead that
// says why.

/// args: q, k and v lie in one qkv, (B, T, NH + 2·NKV, HS), and position is 0.
bool cudnn_attention_forward(Stream::Impl& stream, const FlashForward& args);

/// Bytes of scratch with which cudnn_attention_backward works best; 0 if cuDNN does not take it.
std::int64_t cudnn_attention_backward_scratch(Stream::Impl& stream, DType dtype,
                                              const AttentionHeads& heads);

/// Works through the batch in as many pieces as scratch_bytes, of args.scratch, needs. The
/// gradients have the same bits whatever the pieces, and in every run.
bool cudnn_attention_backward(Stream::Impl& stream, const FlashBackward& args,
                              std::int64_t scratch_bytes);

}  // namespace llmc::cuda
