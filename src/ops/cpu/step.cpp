#include "llmc/ops/step.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/parallel.h"
#include "ops/check.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/optimizer_kernels.h"

namespace llmc {
namespace {

/// (x − mean) / std of a full window; 0 while it fills and when all its values are equal.
float standard_score(const OutlierWindow& window, float x) {
  if (window.count < OutlierWindow::kSize) return 0.0f;
  double mean = 0;
  for (const float value : window.values) mean += value;
  mean /= OutlierWindow::kSize;
  double variance = 0;
  for (const float value : window.values) variance += (value - mean) * (value - mean);
  variance /= OutlierWindow::kSize;
  return variance > 0 ? static_cast<float>((x - mean) / std::sqrt(variance)) : 0.0f;
}

void accept(OutlierWindow& window, float x) {
  window.values[window.next] = x;
  window.next = (window.next + 1) % OutlierWindow::kSize;
  window.count = std::min(window.count + 1, OutlierWindow::kSize);
}

SkipReason judge(const StepBlock& block, const GuardOptions& options) {
  if (block.counted_tokens == 0) return kNoTargets;
  if (!std::isfinite(block.loss)) return kNonFiniteLoss;
  if (!std::isfinite(block.grad_norm)) return kNonFiniteGradient;
  if (options.skip_loss_z > 0 && block.loss_z > options.skip_loss_z) return kLossOutlier;
  if (options.skip_grad_z > 0 && block.grad_z > options.skip_grad_z) return kGradientOutlier;
  return kNoSkip;
}

}  // namespace

void begin_step(Stream&, StepBlock* block, const StepInputs& inputs) {
  const std::int64_t updates = block->updates;
  *block = StepBlock{};
  block->lr = inputs.lr;
  block->seed = inputs.seed;
  block->step = inputs.step;
  block->nominal_tokens = inputs.nominal_tokens;
  block->updates = updates;
}

void sum_of_squares(Stream& stream, const Tensor& partials, const Tensor& values) {
  constexpr const char* kOp = "sum_of_squares";
  cpu::with_float_type(kOp, "values", values, [&]<class T>(std::type_identity<T>) {
    const std::int64_t n = values.numel();
    const std::int64_t blocks = (n + kNormBlock - 1) / kNormBlock;
    expect_count(kOp, "partials", partials, DType::kF32, blocks);
    const auto& kernels = cpu::optimizer_kernels<T>(stream.impl().isa);
    cpu::parallel_for(stream.impl(), blocks, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = i * kNormBlock;
        partials.data<float>()[i] =
            kernels.sum_of_squares(values.data<T>() + first, std::min(kNormBlock, n - first));
      }
    });
  });
}

void finish_gradients(Stream&, StepBlock* block, StepGuard* guard, const Tensor& partials,
                      const GuardOptions& options) {
  expect_count("finish_gradients", "partials", partials, DType::kF32, partials.numel());
  double sum = 0;
  for (std::int64_t i = 0; i < partials.numel(); ++i) sum += partials.data<float>()[i];
  const double counted = static_cast<double>(block->counted_tokens);
  const double correction = counted > 0 ? block->nominal_tokens / counted : 0.0;
  block->loss = counted > 0 ? static_cast<float>(block->loss_sum / counted) : 0.0f;
  block->grad_norm = static_cast<float>(std::sqrt(sum) * correction);
  block->loss_z = standard_score(guard->loss, block->loss);
  block->grad_z = standard_score(guard->grad_norm, block->grad_norm);
  block->skip = judge(*block, options);
  block->grad_scale = 0.0f;
  if (block->skip != kNoSkip) return;
  double scale = correction;
  if (options.grad_clip > 0 && block->grad_norm > options.grad_clip) {
    scale *= static_cast<double>(options.grad_clip) / block->grad_norm;
  }
  block->grad_scale = static_cast<float>(scale);
  accept(guard->loss, block->loss);
  accept(guard->grad_norm, block->grad_norm);
  ++block->updates;
}

}  // namespace llmc
