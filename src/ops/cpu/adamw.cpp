#include "llmc/ops/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/parallel.h"
#include "ops/check.h"
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

}  // namespace

void adamw_update(Stream& stream, const Tensor& param, const Tensor& master, const Tensor& m,
                  const Tensor& v, const Tensor& grad, const StepBlock* block,
                  const AdamWOptions& options, std::int64_t first_index) {
  constexpr const char* kOp = "adamw_update";
  const std::int64_t n = param.numel();
  expect_float(kOp, "param", param);
  if (master) expect_count(kOp, "master", master, DType::kF32, n);
  expect_count(kOp, "m", m, DType::kF32, n);
  expect_count(kOp, "v", v, DType::kF32, n);
  if (block->skip != kNoSkip) return;
  const cpu::AdamWFactors factors = factors_of(*block, options);
  const cpu::Isa isa = stream.impl().isa;
  const auto& conversions = cpu::elementwise_kernels<bf16>(isa);
  cpu::with_float_type(kOp, "grad", grad, [&]<class T>(std::type_identity<T>) {
    expect_count(kOp, "grad", grad, grad.dtype(), n);
    const auto& kernels = cpu::optimizer_kernels<T>(isa);
    const std::int64_t items = (n + kItem - 1) / kItem;
    cpu::parallel_items(stream.impl(), items, [&](std::int64_t item, int thread) {
      auto* const copy = static_cast<float*>(stream.impl().thread_workspace(thread));
      const std::int64_t end = std::min(n, (item + 1) * kItem);
      for (std::int64_t i = item * kItem; i < end; i += kChunk) {
        const std::int64_t count = std::min(kChunk, end - i);
        const bool rounded = param.dtype() == DType::kBF16;
        float* theta = copy;
        if (master) {
          theta = master.data<float>() + i;
        } else if (rounded) {
          conversions.widen(copy, param.data<bf16>() + i, count);
        } else {
          theta = param.data<float>() + i;
        }
        kernels.adamw(theta, m.data<float>() + i, v.data<float>() + i, grad.data<T>() + i, count,
                      factors);
        if (rounded) {
          kernels.round_stochastically(param.data<bf16>() + i, theta, count, block->seed,
                                       first_index + i, block->step);
        } else if (master) {
          std::copy_n(theta, count, param.data<float>() + i);
        }
      }
    });
  });
}

}  // namespace llmc
