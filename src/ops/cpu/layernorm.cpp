#include "llmc/ops/layernorm.h"

#include <algorithm>

#include "core/cpu/parallel.h"
#include "llmc/core/error.h"
#include "ops/check.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/elementwise_kernels.h"
#include "ops/cpu/kernels/layernorm_kernels.h"
#include "ops/layernorm_check.h"

namespace llmc {
namespace {

/// fp32 values of a weight or bias: in place, or converted into the shared workspace, of which
/// `slot` takes a half. Null for an empty tensor.
const float* as_f32(Stream& stream, const char* op, const Tensor& values, int slot) {
  if (values.empty()) return nullptr;
  if (values.dtype() == DType::kF32) return values.data<float>();
  constexpr auto kHalf = static_cast<std::int64_t>(cpu::kSharedWorkspaceBytes / 2 / sizeof(float));
  const std::int64_t C = values.numel();
  if (C > kHalf) fail(ErrorKind::kInput, op, "C: expected at most ", kHalf, ", got ", C);
  float* const out = static_cast<float*>(stream.impl().shared_workspace.data()) + slot * kHalf;
  cpu::elementwise_kernels<bf16>(stream.impl().isa).widen(out, values.data<bf16>(), C);
  return out;
}

float* statistic(const Tensor& tensor) {
  return tensor.empty() ? nullptr : tensor.data<float>();
}

float* offset(float* p, std::int64_t n) {
  return p == nullptr ? nullptr : p + n;
}

/// Rows whose part of dweight and dbias is summed on its own. It depends on the row count alone, so
/// that the result does not depend on the threads.
std::int64_t rows_per_part(std::int64_t rows) {
  constexpr std::int64_t kMinRows = 16;
  constexpr std::int64_t kMaxParts = 128;
  return std::max(kMinRows, (rows + kMaxParts - 1) / kMaxParts);
}
std::int64_t parts_of(std::int64_t rows) {
  return (rows + rows_per_part(rows) - 1) / rows_per_part(rows);
}

}  // namespace

void layernorm_forward(Stream& stream, const Tensor& out, const Tensor& mean, const Tensor& rstd,
                       const Tensor& in, const Tensor& weight, const Tensor& bias, float eps) {
  constexpr const char* kOp = "layernorm_forward";
  const auto [rows, C] = check_layernorm_forward(kOp, out, mean, rstd, in, weight, bias);
  cpu::with_float_type(kOp, "in", in, [&, rows = rows, C = C]<class T>(std::type_identity<T>) {
    const float* const w = as_f32(stream, kOp, weight, 0);
    const float* const b = as_f32(stream, kOp, bias, 1);
    float* const m = statistic(mean);
    float* const r = statistic(rstd);
    const auto& kernels = cpu::layernorm_kernels<T>(stream.impl().isa);
    cpu::parallel_for(stream.impl(), rows, [&](std::int64_t begin, std::int64_t end) {
      kernels.forward(out.data<T>() + begin * C, offset(m, begin), offset(r, begin),
                      in.data<T>() + begin * C, w, b, end - begin, C, eps);
    });
  });
}

void residual_layernorm_forward(Stream& stream, const Tensor& sum, const Tensor& out,
                                const Tensor& mean, const Tensor& rstd, const Tensor& a,
                                const Tensor& b, const Tensor& weight, const Tensor& bias,
                                float eps) {
  constexpr const char* kOp = "residual_layernorm_forward";
  const auto [rows, C] =
      check_residual_layernorm_forward(kOp, sum, out, mean, rstd, a, b, weight, bias);
  cpu::with_float_type(kOp, "a", a, [&, rows = rows, C = C]<class T>(std::type_identity<T>) {
    const float* const w = as_f32(stream, kOp, weight, 0);
    const float* const shift = as_f32(stream, kOp, bias, 1);
    float* const m = statistic(mean);
    float* const r = statistic(rstd);
    const auto& kernels = cpu::layernorm_kernels<T>(stream.impl().isa);
    cpu::parallel_for(stream.impl(), rows, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * C;
      kernels.residual_forward(sum.data<T>() + at, out.data<T>() + at, offset(m, begin),
                               offset(r, begin), a.data<T>() + at, b.data<T>() + at, w, shift,
                               end - begin, C, eps);
    });
  });
}

std::int64_t layernorm_backward_scratch(const Stream&, std::int64_t rows, std::int64_t channels) {
  return parts_of(rows) * 2 * channels * static_cast<std::int64_t>(sizeof(float));
}

void layernorm_backward(Stream& stream, const Tensor& din, const Tensor& dweight,
                        const Tensor& dbias, const Tensor& dout, const Tensor& in,
                        const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                        const Tensor& scratch, bool add_to_input, bool accumulate) {
  constexpr const char* kOp = "layernorm_backward";
  const auto [rows, C] =
      check_layernorm_backward(kOp, din, dweight, dbias, dout, in, weight, mean, rstd);
  expect_scratch(kOp, scratch, layernorm_backward_scratch(stream, rows, C));
  cpu::with_float_type(kOp, "in", in, [&, rows = rows, C = C]<class T>(std::type_identity<T>) {
    const float* const w = as_f32(stream, kOp, weight, 0);

    const std::int64_t parts = parts_of(rows);
    const std::int64_t per_part = rows_per_part(rows);
    auto* const partial = static_cast<float*>(scratch.raw());  // (parts, 2, C)
    const auto& kernels = cpu::layernorm_kernels<T>(stream.impl().isa);
    cpu::parallel_for(stream.impl(), parts, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        const std::int64_t first = part * per_part;
        const std::int64_t count = std::min(per_part, rows - first);
        const std::int64_t at = first * C;
        kernels.backward(din.data<T>() + at, partial + 2 * part * C, partial + (2 * part + 1) * C,
                         dout.data<T>() + at, in.data<T>() + at, w, mean.data<float>() + first,
                         rstd.data<float>() + first, count, C, add_to_input);
      }
    });
    const auto& elementwise = cpu::elementwise_kernels<float>(stream.impl().isa);
    constexpr std::int64_t kSerialAdditions = 1 << 16;
    cpu::parallel_for(
        stream.impl(), C,
        [&](std::int64_t begin, std::int64_t end) {
          const std::int64_t n = end - begin;
          for (int which = 0; which < 2; ++which) {
            const Tensor& to = which == 0 ? dweight : dbias;
            if (to.empty()) continue;
            float* const sum = to.data<float>() + begin;
            if (!accumulate) std::fill_n(sum, n, 0.0f);
            for (std::int64_t part = 0; part < parts; ++part) {
              elementwise.accumulate(sum, partial + (2 * part + which) * C + begin, n);
            }
          }
        },
        kSerialAdditions / std::max<std::int64_t>(1, 2 * parts));
  });
}

}  // namespace llmc
