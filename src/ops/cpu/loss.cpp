#include "llmc/ops/loss.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/parallel.h"
#include "llmc/core/error.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/loss_kernels.h"
#include "ops/loss_check.h"

namespace llmc {
namespace {

float value(const float* p) {
  return *p;
}
float value(const bf16* p) {
  return to_f32(*p);
}
void set(float* p, double x) {
  *p = static_cast<float>(x);
}
void set(bf16* p, double x) {
  *p = to_bf16(static_cast<float>(x));
}

/// The loss of every row; logits turn into their gradient, scaled by *dloss, unless it is null.
void cross_entropy(const char* op, Stream& stream, const Tensor& losses, const Tensor& logits,
                   const Tensor& targets, std::int64_t V, const float* dloss, StepBlock* block) {
  const LossSizes sizes = check_cross_entropy(op, losses, logits, targets, V);
  const std::int64_t R = sizes.rows;
  const std::int64_t Vp = sizes.padded_vocab_size;
  static_assert((kMaxVocabulary + kMaxVocabulary / cpu::kLossBlock + 1) * sizeof(float) <=
                cpu::kThreadWorkspaceBytes);
  const auto* const target = targets.data<std::int32_t>();
  for (std::int64_t r = 0; r < R; ++r) {
    if (target[r] < -1 || target[r] >= V) {
      fail(ErrorKind::kInput, op, "targets: expected -1 to ", V - 1, ", got ", target[r]);
    }
  }
  auto* const loss = losses.data<float>();
  cpu::with_float_type(op, "logits", logits, [&]<class T>(std::type_identity<T>) {
    const auto& kernels = cpu::loss_kernels<T>(stream.impl().isa);
    cpu::parallel_items(stream.impl(), R, [&](std::int64_t r, int thread) {
      T* const row = logits.data<T>() + r * Vp;
      if (target[r] < 0) {
        loss[r] = 0.0f;
        if (dloss != nullptr) std::fill_n(row, Vp, T{});
        return;
      }
      cpu::SoftmaxRow softmax{};
      softmax.exponentials = static_cast<float*>(stream.impl().thread_workspace(thread));
      softmax.block_max = softmax.exponentials + V;
      kernels.exponentials(softmax, row, V);
      const double below_largest = static_cast<double>(softmax.largest) - value(row + target[r]);
      const double row_loss = below_largest + std::log(static_cast<double>(softmax.sum));
      loss[r] = static_cast<float>(row_loss);
      if (dloss == nullptr) return;
      kernels.scale(row, softmax, V, *dloss / softmax.sum);
      set(row + target[r], *dloss * std::expm1(-row_loss));
      std::fill(row + V, row + Vp, T{});
    });
  });
  if (block == nullptr) return;
  for (std::int64_t r = 0; r < R; ++r) {
    if (target[r] < 0) continue;
    block->loss_sum += loss[r];
    ++block->counted_tokens;
  }
}

}  // namespace

void cross_entropy_forward(Stream& stream, const Tensor& losses, const Tensor& logits,
                           const Tensor& targets, std::int64_t vocab_size, StepBlock* block) {
  cross_entropy("cross_entropy_forward", stream, losses, logits, targets, vocab_size, nullptr,
                block);
}

void cross_entropy_backward(Stream& stream, const Tensor& losses, const Tensor& logits,
                            const Tensor& targets, std::int64_t vocab_size, float dloss,
                            StepBlock* block) {
  cross_entropy("cross_entropy_backward", stream, losses, logits, targets, vocab_size, &dloss,
                block);
}

}  // namespace llmc
