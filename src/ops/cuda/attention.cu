#include "llmc/ops/attention.h"

#include <algorithm>

#include "ops/attention_check.h"
#include "ops/check.h"
#include "ops/cuda/attention_decode.h"
#include "ops/cuda/cudnn_attention.h"
#include "ops/cuda/flash_attention.h"
#include "ops/cuda/hopper_attention.h"

namespace llmc {
namespace {

/// The element `count` elements into a tensor.
void* element(const Tensor& tensor, std::int64_t count) {
  return static_cast<char*>(tensor.raw()) +
         count * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

enum class Pass { kForward, kBackward };

/// The Hopper kernels are faster than cuDNN's deterministic backward pass, and in the forward pass
/// for heads of at most so many elements.
constexpr std::int64_t kHopperForwardLeads = 64;

/// Whether cuDNN is to be asked before the own kernels are used.
bool cudnn_goes_first(const Stream::Impl& stream, DType dtype, const AttentionHeads& heads,
                      Pass pass) {
  switch (stream.device.impl().attention) {
    case cuda::AttentionKind::kOwn:
      return false;
    case cuda::AttentionKind::kCudnn:
      return true;
    case cuda::AttentionKind::kAuto:
      return !cuda::hopper_takes(stream, dtype, heads) ||
             (pass == Pass::kForward && heads.HS > kHopperForwardLeads);
  }
  return false;
}

}  // namespace

std::int64_t attention_max_head_size() {
  return cuda::kFlashMaxHeadSize;
}

void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       std::int64_t n_kv_head, float scale) {
  const AttentionHeads h = expect_attention_forward(out, lse, qkv, n_kv_head);
  if (out.numel() == 0) return;
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::FlashForward args{};
  args.dtype = qkv.dtype();
  args.heads = h;
  args.out = out.raw();
  args.lse = lse ? lse.data<float>() : nullptr;
  args.q = qkv.raw();
  args.k = element(qkv, h.NH * h.HS);
  args.v = element(qkv, (h.NH + h.NKV) * h.HS);
  args.q_token = args.kv_token = h.qkv_stride();
  args.q_sequence = args.kv_sequence = h.T * h.qkv_stride();
  args.scale = scale;
  if (cudnn_goes_first(stream.impl(), args.dtype, h, Pass::kForward) &&
      cuda::cudnn_attention_forward(stream.impl(), args)) {
    return;
  }
  cuda::flash_attention_forward(stream.impl(), args);
}

std::int64_t attention_backward_scratch(Stream& stream, DType dtype, std::int64_t batch,
                                        std::int64_t tokens, std::int64_t n_head,
                                        std::int64_t n_kv_head, std::int64_t head_size) {
  const cuda::CurrentDevice current(stream.impl().ordinal());
  const AttentionHeads h{batch, tokens, n_head, n_kv_head, head_size};
  const std::int64_t own = cuda::flash_attention_backward_scratch(batch, tokens, n_head);
  if (!cudnn_goes_first(stream.impl(), dtype, h, Pass::kBackward)) return own;
  // Smaller batches in the same scratch may be ones that cuDNN does not take.
  return std::max(own, cuda::cudnn_attention_backward_scratch(stream.impl(), dtype, h));
}

void attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout, const Tensor& qkv,
                        const Tensor& out, const Tensor& lse, const Tensor& scratch,
                        std::int64_t n_kv_head, float scale) {
  const AttentionHeads h = expect_attention_backward(dqkv, dout, qkv, out, lse, n_kv_head);
  if (out.numel() == 0) return;
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::FlashBackward args{};
  args.dtype = qkv.dtype();
  args.heads = h;
  args.dqkv = dqkv.raw();
  args.dout = dout.raw();
  args.qkv = qkv.raw();
  args.out = out.raw();
  args.lse = lse.data<float>();
  args.scratch = scratch.raw();
  args.scale = scale;
  // cuDNN makes do with what scratch there is.
  if (cudnn_goes_first(stream.impl(), args.dtype, h, Pass::kBackward) &&
      cuda::cudnn_attention_backward(stream.impl(), args, scratch.numel())) {
    return;
  }
  expect_scratch("attention_backward", scratch,
                 cuda::flash_attention_backward_scratch(h.B, h.T, h.NH));
  cuda::flash_attention_backward(stream.impl(), args);
}

void attention_decode(Stream& stream, const Tensor& out, const Tensor& k_cache,
                      const Tensor& v_cache, const Tensor& qkv, std::int64_t position,
                      float scale) {
  const AttentionHeads h = expect_attention_decode(out, k_cache, v_cache, qkv, position);
  if (out.numel() == 0) return;
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::AttentionDecode decode{};
  decode.dtype = qkv.dtype();
  decode.heads = h;
  decode.out = out.raw();
  decode.k_cache = k_cache.raw();
  decode.v_cache = v_cache.raw();
  decode.qkv = qkv.raw();
  decode.max_tokens = k_cache.dim(1);
  decode.position = position;
  decode.scale = scale;
  cuda::append_to_caches(stream.impl(), decode);
  cuda::FlashForward args{};
  args.dtype = qkv.dtype();
  args.heads = h;
  args.out = out.raw();
  args.q = qkv.raw();
  args.k = k_cache.raw();
  args.v = v_cache.raw();
  args.q_token = h.qkv_stride();
  args.q_sequence = h.T * h.qkv_stride();
  args.kv_token = h.NKV * h.HS;
  args.kv_sequence = k_cache.dim(1) * args.kv_token;
  args.position = position;
  args.scale = scale;
  cuda::flash_attention_forward(stream.impl(), args);
}

}  // namespace llmc
