#pragma once

#include <cstdint>
#include <span>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"
#include "llmc/ops/step.h"

namespace llmc {

/// Hyper-parameters of AdamW (Loshchilov and Hutter, 2019).
struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
};

/// A stretch of parameters, with all that belongs to them.
struct AdamWRange {
  Tensor param;   ///< (n) f32 or bf16
  Tensor master;  ///< (n) f32 or empty; where there, it holds θ and param is its rounding
  Tensor m, v;    ///< (n) f32
  Tensor grad;    ///< (n) f32 or bf16
  std::int64_t first_index = 0;  ///< number of the first element in the whole model
  bool decay = true;             ///< false: without weight decay
};

/// One fused pass over all ranges: g = grad × grad_scale; m and v by interpolation; with
/// t = updates
///   θ ← θ − lr·( (m / (1−β1ᵗ)) / (sqrt(v / (1−β2ᵗ)) + eps) + weight_decay·θ ).
/// Changes nothing when block->skip is set. A bf16 param without master is itself θ. Writes of bf16
/// round stochastically: element number e = first_index + i of the whole model, as fp32 bits, is
/// added 16 bits of noise before the lower half is cut off; the noise is half e % 2 (0: the low
/// one) of word e % 8 / 2 of philox4x32(seed, e / 8, step), so it does not depend on how the model
/// is cut into ranges.
void adamw_update(Stream& stream, std::span<const AdamWRange> ranges,
                  const StepBlock* block /*device*/, const AdamWOptions& options);

}  // namespace llmc
