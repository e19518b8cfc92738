#include "llmc/ops/linear.h"

#include <algorithm>

#include "core/cpu/parallel.h"
#include "llmc/ops/activation.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/gemm.h"
#include "ops/linear_check.h"

namespace llmc {
namespace {

cpu::GemmOutput output(const Tensor& c) {
  return {.c = c.raw(), .c_type = c.dtype(), .ld = c.dim(-1)};
}
cpu::GemmOperand operand(const Tensor& t, bool depth_contiguous) {
  return {t.raw(), t.dtype(), t.dim(-1), depth_contiguous};
}

void set_bias(cpu::GemmOutput& out, const Tensor& bias) {
  if (bias.empty()) return;
  out.bias = bias.raw();
  out.bias_type = bias.dtype();
}

float widened(float x) {
  return x;
}
float widened(bf16 x) {
  return to_f32(x);
}

/// sums (+)= column sums of in: (rows, columns), at least one row.
void add_columns(const Stream::Impl& stream, const Tensor& sums, const Tensor& in,
                 std::int64_t rows, std::int64_t columns, bool accumulate) {
  constexpr std::int64_t kStripe = 256;  // columns that a thread adds at a time
  cpu::with_float_type("linear", "dpre", in, [&]<class T>(std::type_identity<T>) {
    cpu::parallel_items(stream, (columns + kStripe - 1) / kStripe, [&](std::int64_t item, int) {
      const std::int64_t begin = item * kStripe, count = std::min(kStripe, columns - begin);
      float total[kStripe] = {};
      for (std::int64_t row = 0; row < rows; ++row) {
        const T* x = in.data<T>() + row * columns + begin;
        for (std::int64_t i = 0; i < count; ++i) total[i] += widened(x[i]);
      }
      for (std::int64_t i = 0; i < count; ++i) {
        if (sums.dtype() == DType::kF32) {
          float& sum = sums.data<float>()[begin + i];
          sum = accumulate ? sum + total[i] : total[i];
        } else {
          bf16& sum = sums.data<bf16>()[begin + i];
          sum = to_bf16(accumulate ? to_f32(sum) + total[i] : total[i]);
        }
      }
    });
  });
}

}  // namespace

void matmul(Stream& stream, const Tensor& c, const Tensor& a, const Tensor& b,
            const MatmulOptions& options) {
  const auto [m, n, k] = check_matmul(c, a, b, options);
  cpu::GemmOutput out = output(c);
  out.alpha = options.alpha;
  out.beta = options.beta;
  cpu::gemm(stream.impl(), out, operand(a, !options.transpose_a), operand(b, options.transpose_b),
            m, n, k);
}

void linear_forward(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& weight,
                    const Tensor& bias) {
  const auto [n, c, oc] = check_linear_forward(out, in, weight, bias);
  cpu::GemmOutput result = output(out);
  set_bias(result, bias);
  cpu::gemm(stream.impl(), result, operand(in, true), operand(weight, true), n, oc, c);
}

void linear_gelu_forward(Stream& stream, const Tensor& out, const Tensor& pre, const Tensor& in,
                         const Tensor& weight, const Tensor& bias) {
  const auto [n, c, oc] = check_linear_gelu_forward(out, pre, in, weight, bias);
  cpu::GemmOutput result = output(out);
  set_bias(result, bias);
  result.epilogue = cpu::GemmEpilogue::kGelu;
  result.pre = pre.raw();
  result.pre_type = out.dtype();
  cpu::gemm(stream.impl(), result, operand(in, true), operand(weight, true), n, oc, c);
}

void linear_backward_input(Stream& stream, const Tensor& din, const Tensor& dout,
                           const Tensor& weight) {
  const auto [n, c, oc] = check_linear_backward_input(din, dout, weight);
  cpu::gemm(stream.impl(), output(din), operand(dout, true), operand(weight, false), n, c, oc);
}

void linear_gelu_backward_input(Stream& stream, const Tensor& dpre, const Tensor& gelu,
                                const Tensor& dbias, const Tensor& dout, const Tensor& weight,
                                const Tensor& pre, bool accumulate) {
  const auto [n, c, oc] = check_linear_gelu_backward_input(dpre, gelu, dbias, dout, weight, pre);
  cpu::GemmOutput result = output(dpre);
  result.epilogue = cpu::GemmEpilogue::kGeluGradient;
  result.pre = pre.raw();
  result.pre_type = pre.dtype();
  cpu::gemm(stream.impl(), result, operand(dout, true), operand(weight, false), n, c, oc);
  if (gelu) gelu_forward(stream, gelu, pre);
  if (dbias && n > 0) {
    add_columns(stream.impl(), dbias, dpre, n, c, accumulate);
  } else if (dbias && !accumulate) {
    zero(stream, dbias);
  }
}

void linear_backward_weight(Stream& stream, const Tensor& dweight, const Tensor& dbias,
                            const Tensor& dout, const Tensor& in, bool accumulate) {
  const auto [n, c, oc] = check_linear_backward_weight(dweight, dbias, dout, in);
  cpu::GemmOutput result = output(dweight);
  result.beta = accumulate ? 1.0f : 0.0f;
  result.row_sums = dbias.raw();
  result.row_sums_type = dbias.dtype();
  result.accumulate_row_sums = accumulate;
  cpu::gemm(stream.impl(), result, operand(dout, false), operand(in, false), oc, c, n);
}

UntimedMatmuls::UntimedMatmuls(Stream& stream) : stream_(stream) {}
UntimedMatmuls::~UntimedMatmuls() = default;

std::string matmul_choices(Stream&) {
  return {};  // there is one algorithm
}

void set_matmul_choices(Stream&, std::string_view) {}

}  // namespace llmc
