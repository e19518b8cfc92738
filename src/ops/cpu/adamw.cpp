#include "llmc/ops/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/parallel.h"
#include "ops/adamw_check.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/elementwise_kernels.h"
#include "ops/cpu/kernels/optimizer_kernels.h"

namespace llmc {
namespace {

/// Elements updated before they are rounded, so that the rounding finds them in the cache.
constexpr std::int64_t kChunk = 4096;
/// Elements that a thread takes at a time; fewer are not worth a second thread.
constexpr std::int64_t kItem = 16 * kChunk;
static_assert(kChunk * sizeof(float) <= cpu::kThreadWorkspaceBytes);

cpu::AdamWFactors factors_of(const StepBlock& block, const AdamWOptions& options) {
  const auto t = static_cast<double>(block.updates);
  cpu::AdamWFactors f{};
  f.grad_scale = block.grad_scale;
  f.beta1 = options.beta1;
  f.beta2 = options.beta2;
  f.bias1 = static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(options.beta1), t)));
  f.bias2 = static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(options.beta2), t)));
  f.lr = block.lr;
  f.eps = options.eps;
  f.weight_decay = options.weight_decay;
  return f;
}

void update(Stream& stream, const AdamWRange& range, const StepBlock& block,
            cpu::AdamWFactors factors) {
  if (!range.decay) factors.weight_decay = 0.0f;
  const std::int64_t n = range.param.numel();
  const cpu::Isa isa = stream.impl().isa;
  const auto& conversions = cpu::elementwise_kernels<bf16>(isa);
  cpu::with_float_type("adamw_update", "grad", range.grad, [&]<class T>(std::type_identity<T>) {
    const auto& kernels = cpu::optimizer_kernels<T>(isa);
    const std::int64_t items = (n + kItem - 1) / kItem;
    cpu::parallel_items(stream.impl(), items, [&](std::int64_t item, int thread) {
      auto* const copy = static_cast<float*>(stream.impl().thread_workspace(thread));
      const std::int64_t end = std::min(n, (item + 1) * kItem);
      for (std::int64_t i = item * kItem; i < end; i += kChunk) {
        const std::int64_t count = std::min(kChunk, end - i);
        const bool rounded = range.param.dtype() == DType::kBF16;
        float* theta = copy;
        if (range.master) {
          theta = range.master.data<float>() + i;
        } else if (rounded) {
          conversions.widen(copy, range.param.data<bf16>() + i, count);
        } else {
          theta = range.param.data<float>() + i;
        }
        kernels.adamw(theta, range.m.data<float>() + i, range.v.data<float>() + i,
                      range.grad.data<T>() + i, count, factors);
        if (rounded) {
          kernels.round_stochastically(range.param.data<bf16>() + i, theta, count, block.seed,
                                       range.first_index + i, block.step);
        } else if (range.master) {
          std::copy_n(theta, count, range.param.data<float>() + i);
        }
      }
    });
  });
}

}  // namespace

void adamw_update(Stream& stream, std::span<const AdamWRange> ranges, const StepBlock* block,
                  const AdamWOptions& options) {
  for (const AdamWRange& range : ranges) check_adamw(range);
  if (block->skip != kNoSkip) return;
  const cpu::AdamWFactors factors = factors_of(*block, options);
  for (const AdamWRange& range : ranges) update(stream, range, *block, factors);
}

}  // namespace llmc
