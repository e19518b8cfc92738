#include "llmc/ops/step.h"

#include <algorithm>
#include <cmath>

#include "ops/check.h"
#include "ops/cuda/kernel.cuh"
#include "ops/step_check.h"
#include "ops/step_decision.h"

namespace llmc {
namespace cuda {
namespace {

constexpr int kNormThreads = 256;
constexpr int kFinishThreads = 1024;

__global__ void begin_step_kernel(StepBlock* block, StepInputs inputs) {
  *block = started_step(inputs, block->updates);
}

/// A block of threads per norm block. Which thread adds which elements, and in which order, does
/// not depend on the alignment: slices give the same bits as the whole.
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    sum_of_squares_kernel(float* partials, const T* values, std::int64_t n, bool aligned) {
  constexpr int kSteps = static_cast<int>(kNormBlock) / (kVec<T> * kNormThreads);
  static_assert(kSteps * kVec<T> * kNormThreads == kNormBlock);
  __shared__ float warps[kNormThreads / kWarp];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kNormBlock;
  const T* const x = values + first;
  const std::int64_t count = n - first;
  const int begin = static_cast<int>(threadIdx.x) * kVec<T>;
  float sum = 0.0f;
  if (aligned && count >= kNormBlock) {
    Vec<T> loaded[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      loaded[step] = Vec<T>::load_once(x + begin + step * kVec<T> * kNormThreads);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kVec<T>; ++i) {
        sum = fmaf(loaded[step].get(i), loaded[step].get(i), sum);
      }
    }
  } else {
    for (int step = 0; step < kSteps; ++step) {
      for (int i = begin + step * kVec<T> * kNormThreads, end = i + kVec<T>; i < end; ++i) {
        if (i < count) sum = fmaf(to_float(x[i]), to_float(x[i]), sum);
      }
    }
  }
  sum = block_sum<kNormThreads>(sum, warps);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kNormThreads)
    combine_ranks_kernel(StepBlock* block, float* partials, std::int64_t count,
                         const std::uint8_t* records, std::int64_t ranks, std::int64_t bytes,
                         const std::int32_t* order) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kNormThreads + threadIdx.x;
  if (i == 0) {
    clear_sums(*block);
    for (std::int64_t r = 0; r < ranks; ++r) {
      add_rank(*block, *reinterpret_cast<const StepBlock*>(records + r * bytes));
    }
  }
  if (i < count) partials[i] = reinterpret_cast<const float*>(records)[order[i]];
}

__global__ void __launch_bounds__(kFinishThreads)
    finish_gradients_kernel(StepBlock* block, StepGuard* guard, const float* partials,
                            std::int64_t count, GuardOptions options) {
  __shared__ double warps[kFinishThreads / kWarp];
  double sum = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kFinishThreads) sum += partials[i];
  sum = block_sum<kFinishThreads>(sum, warps);
  if (threadIdx.x == 0) decide(*block, *guard, std::sqrt(sum), options);
}

}  // namespace
}  // namespace cuda

void begin_step(Stream& stream, StepBlock* block, const StepInputs& inputs) {
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::begin_step_kernel<<<1, 1, 0, stream.impl().stream>>>(block, inputs);
  cuda::check_launch("begin_step");
}

void sum_of_squares(Stream& stream, const Tensor& partials, const Tensor& values) {
  constexpr const char* kOp = "sum_of_squares";
  expect_float(kOp, "values", values);
  const std::int64_t n = values.numel();
  const std::int64_t blocks = cuda::ceil_div(n, kNormBlock);
  expect_count(kOp, "partials", partials, DType::kF32, blocks);
  if (n == 0) return;
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::with_float_type(kOp, "values", values, [&]<class T>(std::type_identity<T>) {
    const T* const x = cuda::pointer<T>(values);
    cuda::sum_of_squares_kernel<<<static_cast<unsigned>(blocks), cuda::kNormThreads, 0,
                                  stream.impl().stream>>>(cuda::pointer<float>(partials), x, n,
                                                          cuda::aligned_rows<T>(kNormBlock, x));
  });
  cuda::check_launch(kOp);
}

void combine_ranks(Stream& stream, StepBlock* block, const Tensor& partials, const Tensor& records,
                   const Tensor& order) {
  check_records(partials, records, order);
  const cuda::CurrentDevice current(stream.impl().ordinal());
  const std::int64_t count = partials.numel();
  const auto grid = static_cast<unsigned>(cuda::ceil_div(count, cuda::kNormThreads));
  cuda::combine_ranks_kernel<<<std::max(1u, grid), cuda::kNormThreads, 0, stream.impl().stream>>>(
      block, cuda::pointer<float>(partials), count, cuda::pointer<std::uint8_t>(records),
      records.dim(0), records.dim(1), cuda::pointer<std::int32_t>(order));
  cuda::check_launch("combine_ranks");
}

void finish_gradients(Stream& stream, StepBlock* block, StepGuard* guard, const Tensor& partials,
                      const GuardOptions& options) {
  constexpr const char* kOp = "finish_gradients";
  expect_count(kOp, "partials", partials, DType::kF32, partials.numel());
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::finish_gradients_kernel<<<1, cuda::kFinishThreads, 0, stream.impl().stream>>>(
      block, guard, cuda::pointer<float>(partials), partials.numel(), options);
  cuda::check_launch(kOp);
}

}  // namespace llmc
