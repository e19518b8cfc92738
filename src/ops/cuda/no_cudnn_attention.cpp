// Stands in for cudnn_attention.cpp in a build without cuDNN.

#include "llmc/core/error.h"
#include "ops/cuda/cudnn_attention.h"

namespace llmc::cuda {
namespace {

void refuse_if_asked_for(const Stream::Impl& stream) {
  if (stream.device.impl().attention == AttentionKind::kCudnn) {
    fail(ErrorKind::kConfig, "attention",
         "expected auto or own, as this build has no cuDNN, got cudnn; build with -DLLMC_CUDNN=ON");
  }
}

}  // namespace

bool cudnn_attention_forward(Stream::Impl& stream, const FlashForward& /*args*/) {
  refuse_if_asked_for(stream);
  return false;
}

std::int64_t cudnn_attention_backward_scratch(Stream::Impl& stream, DType /*dtype*/,
                                              const AttentionHeads& /*heads*/) {
  refuse_if_asked_for(stream);
  return 0;
}

bool cudnn_attention_backward(Stream::Impl& stream, const FlashBackward& /*args*/,
                              std::int64_t /*scratch_bytes*/) {
  refuse_if_asked_for(stream);
  return false;
}

}  // namespace llmc::cuda
