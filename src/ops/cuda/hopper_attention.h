#pragma once

#include "ops/cuda/flash_attention.h"

namespace llmc::cuda {

// The flash attention kernels for Hopper.

/// Whether this build and GPU have them for such tensors: bf16, heads of 33 to 128 elements in
/// 16-byte parts.
bool hopper_takes(const Stream::Impl& stream, DType dtype, const AttentionHeads& heads);

/// The same, and they take these arguments: keys and values beside the queries, 16-byte alignment,
/// a positive scale.
bool hopper_suits(const Stream::Impl& stream, const FlashForward& args);
bool hopper_suits(const Stream::Impl& stream, const FlashBackward& args);

void hopper_attention_forward(Stream::Impl& stream, const FlashForward& args);
void hopper_attention_backward(Stream::Impl& stream, const FlashBackward& args, const float2* rows);

}  // namespace llmc::cuda
