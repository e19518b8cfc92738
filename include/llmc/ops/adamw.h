#pragma once

#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"
#include "llmc/ops/step.h"

namespace llmc {

/// Hyper-parameters of AdamW (Loshchilov and Hutter, 2019) for one group of parameters.
struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
};

/// One fused pass: g = grad × grad_scale; m and v by interpolation; with t = updates
///   θ ← θ − lr·( (m / (1−β1ᵗ)) / (sqrt(v / (1−β2ᵗ)) + eps) + weight_decay·θ ).
/// Changes nothing when block->skip is set. param: (n) f32 or bf16. master: (n) f32 or empty; where
/// there, it holds θ and param is its rounding; a bf16 param without master is itself θ. Writes of
/// bf16 round stochastically: element number e = first_index + i of the whole model, as fp32 bits,
/// is added 16 bits of noise before the lower half is cut off; the noise is half e % 2 (0: the low
/// one) of word e % 8 / 2 of philox4x32(seed, e / 8, step), so it does not depend on how the model
/// is cut into calls. m, v: (n) f32. grad: (n) f32 or bf16.
void adamw_update(Stream& stream, const Tensor& param, const Tensor& master, const Tensor& m,
                  const Tensor& v, const Tensor& grad, const StepBlock* block /*device*/,
                  const AdamWOptions& options, std::int64_t first_index);

}  // namespace llmc
