#pragma once

// What a step starts from, and how it is judged: every backend runs this same code, on whichever
// processor the step block lies. constexpr lets the CUDA compiler call it from kernels.

#include <cmath>
#include <cstdint>

#include "llmc/ops/step.h"

namespace llmc {

/// The block of a new step; `updates` is what it carries over.
constexpr StepBlock started_step(const StepInputs& inputs, std::int64_t updates) {
  StepBlock block;
  block.lr = inputs.lr;
  block.seed = inputs.seed;
  block.step = inputs.step;
  block.nominal_tokens = inputs.nominal_tokens;
  block.stop = inputs.stop;
  block.updates = updates;
  return block;
}

/// Forgets what one rank knew, for add_rank.
constexpr void clear_sums(StepBlock& block) {
  block.loss_sum = 0;
  block.counted_tokens = 0;
  block.stop = 0;
}

/// Adds what the next rank told.
constexpr void add_rank(StepBlock& block, const StepBlock& told) {
  block.loss_sum += told.loss_sum;
  block.counted_tokens += told.counted_tokens;
  if (block.stop == 0) block.stop = told.stop;
}

constexpr bool is_finite(float x) {
  return x - x == 0.0f;
}

/// (x − mean) / std of a full window; 0 while it fills and when all its values are equal.
constexpr float standard_score(const OutlierWindow& window, float x) {
  if (window.count < OutlierWindow::kSize) return 0.0f;
  double mean = 0;
  for (const float value : window.values) mean += value;
  mean /= OutlierWindow::kSize;
  double variance = 0;
  for (const float value : window.values) variance += (value - mean) * (value - mean);
  variance /= OutlierWindow::kSize;
  return variance > 0 ? static_cast<float>((x - mean) / std::sqrt(variance)) : 0.0f;
}

constexpr void accept(OutlierWindow& window, float x) {
  window.values[window.next] = x;
  window.next = (window.next + 1) % OutlierWindow::kSize;
  if (window.count < OutlierWindow::kSize) ++window.count;
}

constexpr SkipReason judge(const StepBlock& block, const GuardOptions& options) {
  if (block.counted_tokens == 0) return kNoTargets;
  if (!is_finite(block.loss)) return kNonFiniteLoss;
  if (!is_finite(block.grad_norm)) return kNonFiniteGradient;
  if (options.skip_loss_z > 0 && block.loss_z > options.skip_loss_z) return kLossOutlier;
  if (options.skip_grad_z > 0 && block.grad_z > options.skip_grad_z) return kGradientOutlier;
  return kNoSkip;
}

/// All that finish_gradients does once `norm`, the L2 norm of the gradients as they were scaled, is
/// known.
constexpr void decide(StepBlock& block, StepGuard& guard, double norm,
                      const GuardOptions& options) {
  const double counted = static_cast<double>(block.counted_tokens);
  const double correction = counted > 0 ? block.nominal_tokens / counted : 0.0;
  block.loss = counted > 0 ? static_cast<float>(block.loss_sum / counted) : 0.0f;
  block.grad_norm = static_cast<float>(norm * correction);
  block.loss_z = standard_score(guard.loss, block.loss);
  block.grad_z = standard_score(guard.grad_norm, block.grad_norm);
  block.skip = judge(block, options);
  block.grad_scale = 0.0f;
  if (block.skip != kNoSkip) return;
  double scale = correction;
  if (options.grad_clip > 0 && block.grad_norm > options.grad_clip) {
    scale *= static_cast<double>(options.grad_clip) / block.grad_norm;
  }
  block.grad_scale = static_cast<float>(scale);
  accept(guard.loss, block.loss);
  accept(guard.grad_norm, block.grad_norm);
  ++block.updates;
}

}  // namespace llmc
