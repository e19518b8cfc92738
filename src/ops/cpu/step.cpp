#include "llmc/ops/step.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/parallel.h"
#include "ops/check.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/optimizer_kernels.h"
#include "ops/step_check.h"
#include "ops/step_decision.h"

namespace llmc {

void begin_step(Stream&, StepBlock* block, const StepInputs& inputs) {
  *block = started_step(inputs, block->updates);
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

void combine_ranks(Stream&, StepBlock* block, const Tensor& partials, const Tensor& records,
                   const Tensor& order) {
  check_records(partials, records, order);
  const auto* const bytes = records.data<std::uint8_t>();
  clear_sums(*block);
  for (std::int64_t r = 0; r < records.dim(0); ++r) {
    add_rank(*block, *reinterpret_cast<const StepBlock*>(bytes + r * records.dim(1)));
  }
  const auto* const numbers = reinterpret_cast<const float*>(bytes);
  for (std::int64_t i = 0; i < partials.numel(); ++i) {
    partials.data<float>()[i] = numbers[order.data<std::int32_t>()[i]];
  }
}

void finish_gradients(Stream&, StepBlock* block, StepGuard* guard, const Tensor& partials,
                      const GuardOptions& options) {
  expect_count("finish_gradients", "partials", partials, DType::kF32, partials.numel());
  double sum = 0;
  for (std::int64_t i = 0; i < partials.numel(); ++i) sum += partials.data<float>()[i];
  decide(*block, *guard, std::sqrt(sum), options);
}

}  // namespace llmc
