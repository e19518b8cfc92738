#pragma once

#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// Everything that changes from step to step. It lies in device memory, so that a step needs no
/// host wait; the host reads it back one step later.
struct StepBlock {
  // Set by begin_step.
  float lr = 0.0f;            ///< learning rate of this update
  std::uint64_t seed = 0;     ///< key of the stochastic rounding
  std::int64_t step = 0;      ///< 0-based index of this step; counter of the stochastic rounding
  double nominal_tokens = 1;  ///< the gradients were scaled by 1 / nominal_tokens
  // Of this rank at first, of all of them after combine_ranks. The loss of every micro-step adds to
  // the sums.
  double loss_sum = 0;              ///< sum of the counted tokens' losses, nats
  std::int64_t counted_tokens = 0;  ///< targets that were not -1
  std::int32_t stop = 0;            ///< not 0: asks to end the run; set by begin_step
  // Set by finish_gradients.
  float loss = 0.0f;        ///< mean loss per counted token
  float grad_norm = 0.0f;   ///< global L2 norm of the mean gradient, before clipping
  float grad_scale = 0.0f;  ///< what the update multiplies gradients by: count correction × clip
  float loss_z = 0.0f;      ///< (x − mean) / std of the window; 0 while it fills or if std is 0
  float grad_z = 0.0f;
  std::int32_t skip = 0;     ///< a SkipReason; not 0: the update changes nothing
  std::int64_t updates = 0;  ///< updates applied so far, this one included: bias-correction count
};

/// Why a step changes nothing.
enum SkipReason : std::int32_t {
  kNoSkip = 0,
  kNonFiniteLoss = 1,
  kNonFiniteGradient = 2,
  kLossOutlier = 3,
  kGradientOutlier = 4,
  kNoTargets = 5,
};

/// Last accepted values of one quantity. Non-finite and skipped values never enter.
struct OutlierWindow {
  static constexpr int kSize = 128;
  float values[kSize] = {};
  std::int32_t count = 0;  ///< values held, up to kSize
  std::int32_t next = 0;   ///< where the next one goes
};

/// State of the guard that decides on skips; device memory, part of a checkpoint.
struct StepGuard {
  OutlierWindow loss;
  OutlierWindow grad_norm;
};

/// How a step is judged.
struct GuardOptions {
  float grad_clip = 0.0f;    ///< largest global norm; 0: no clipping
  float skip_loss_z = 0.0f;  ///< skip when the loss scores above this; 0: never
  float skip_grad_z = 0.0f;  ///< the same for the gradient norm
};

/// Inputs of one step.
struct StepInputs {
  float lr;
  std::uint64_t seed;
  std::int64_t step;
  double nominal_tokens;
  std::int32_t stop = 0;
};

/// Writes the inputs and clears the sums, the loss, the norm and the skip flag. `updates` stays.
void begin_step(Stream& stream, StepBlock* block /*device*/, const StepInputs& inputs);

/// Elements that one partial sum of squares covers. Slices of sharded buckets are cut at its
/// multiples, so that the norm has the same bits for any number of threads and ranks.
inline constexpr std::int64_t kNormBlock = 4096;

/// partials[i] = sum of squares of elements [i·kNormBlock, (i+1)·kNormBlock) of `values`, in fp32
/// by a fixed order. partials: (ceil(n / kNormBlock)) f32. values: (n) f32 or bf16.
void sum_of_squares(Stream& stream, const Tensor& partials, const Tensor& values);

/// What every rank tells the others of a step, as bytes in device memory: its StepBlock, then f32
/// partial sums of squares. Records follow one another, aligned for both.
inline constexpr std::int64_t kRecordAlignment = 16;
constexpr std::int64_t step_record_bytes(std::int64_t partials) {
  const std::int64_t bytes =
      std::int64_t{sizeof(StepBlock)} + partials * std::int64_t{sizeof(float)};
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

/// Takes together what the ranks told: loss_sum and counted_tokens are added in order of rank, stop
/// is that of the first rank that asks, and partials[i] is the f32 number order[i] of the records'
/// memory. partials: (m) f32; records: (ranks, record bytes) u8; order: (m) i32.
void combine_ranks(Stream& stream, StepBlock* block /*device*/, const Tensor& partials,
                   const Tensor& records, const Tensor& order);

/// Turns sums into decisions: loss, grad_norm = sqrt(sum of partials) × the count correction
/// nominal_tokens / counted_tokens, skip, grad_scale, scores and windows, updates. The partials are
/// added in double, in an order that depends on their number alone. partials: (m) f32, of all
/// buckets in table order.
void finish_gradients(Stream& stream, StepBlock* block /*device*/, StepGuard* guard /*device*/,
                      const Tensor& partials, const GuardOptions& options);

}  // namespace llmc
