#include "ops/cpu/kernels/layernorm_kernels.h"

#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {
namespace {

/// Never inlined, so that every caller gets the same roundings.
template <class T>
__attribute__((noinline)) void forward_row(T* out, float* mean_out, float* rstd_out, const T* in,
                                           const float* weight, const float* bias, std::int64_t C,
                                           float eps) {
  const auto inverse_count = 1.0f / static_cast<float>(C);
  const float mean =
      inverse_count * sum_over(C, [&](std::int64_t i, auto lanes) { return load(in + i, lanes); });
  // The mean is subtracted before squaring, and a partial load would leave −mean in its last lanes.
  const float squares = sum_over(C, [&](std::int64_t i, auto lanes) {
    const VecF x = load(in + i, lanes) - mean;
    return keep(x, lanes) * x;
  });
  const float rstd = 1.0f / __builtin_sqrtf(squares * inverse_count + eps);
  for_vectors(C, [&](std::int64_t i, auto lanes) {
    VecF y = (load(in + i, lanes) - mean) * rstd * load(weight + i, lanes);
    if (bias != nullptr) y += load(bias + i, lanes);
    store(out + i, y, lanes);
  });
  if (mean_out != nullptr) *mean_out = mean;
  if (rstd_out != nullptr) *rstd_out = rstd;
}

template <class T>
void forward(T* out, float* mean, float* rstd, const T* in, const float* weight, const float* bias,
             std::int64_t rows, std::int64_t C, float eps) {
  for (std::int64_t r = 0; r < rows; ++r) {
    forward_row(out + r * C, mean != nullptr ? mean + r : nullptr,
                rstd != nullptr ? rstd + r : nullptr, in + r * C, weight, bias, C, eps);
  }
}

template <class T>
void residual_forward(T* sum, T* out, float* mean, float* rstd, const T* a, const T* b,
                      const float* weight, const float* bias, std::int64_t rows, std::int64_t C,
                      float eps) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = r * C;
    for_vectors(C, [&](std::int64_t i, auto lanes) {
      store(sum + row + i, load(a + row + i, lanes) + load(b + row + i, lanes), lanes);
    });
    forward_row(out + row, mean != nullptr ? mean + r : nullptr,
                rstd != nullptr ? rstd + r : nullptr, sum + row, weight, bias, C, eps);
  }
}

/// kRows rows at once, so that dweight and dbias are read and written once for all of them.
template <int kRows, class T>
void backward_rows(T* din, float* dweight, float* dbias, const T* dout, const T* in,
                   const float* weight, const float* mean, const float* rstd, std::int64_t C,
                   bool add_to_input) {
  VecF sum_dnorm[kRows] = {};
  VecF sum_dnorm_norm[kRows] = {};
  for_vectors(C, [&](std::int64_t i, auto lanes) {
    const VecF w = load(weight + i, lanes);
    VecF dw = load(dweight + i, lanes);
    VecF db = load(dbias + i, lanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const VecF dy = load(dout + r * C + i, lanes);
      const VecF norm = (load(in + r * C + i, lanes) - mean[r]) * rstd[r];
      const VecF dnorm = dy * w;
      db += dy;
      dw += dy * norm;
      sum_dnorm[r] += dnorm;
      sum_dnorm_norm[r] += dnorm * norm;
    }
    store(dweight + i, dw, lanes);
    store(dbias + i, db, lanes);
  });
  for (int r = 0; r < kRows; ++r) {
    const float mean_dnorm = sum(sum_dnorm[r]) / static_cast<float>(C);
    const float mean_dnorm_norm = sum(sum_dnorm_norm[r]) / static_cast<float>(C);
    T* const dx = din + r * C;
    const T* const x = in + r * C;
    const T* const dy = dout + r * C;
    for_vectors(C, [&](std::int64_t i, auto lanes) {
      const VecF norm = (load(x + i, lanes) - mean[r]) * rstd[r];
      const VecF dnorm = load(dy + i, lanes) * load(weight + i, lanes);
      VecF d = (dnorm - mean_dnorm - norm * mean_dnorm_norm) * rstd[r];
      if (add_to_input) d += load(dx + i, lanes);
      store(dx + i, d, lanes);
    });
  }
}

template <class T>
void backward(T* din, float* dweight, float* dbias, const T* dout, const T* in, const float* weight,
              const float* mean, const float* rstd, std::int64_t rows, std::int64_t C,
              bool add_to_input) {
  std::memset(dweight, 0, static_cast<std::size_t>(C) * sizeof(float));
  std::memset(dbias, 0, static_cast<std::size_t>(C) * sizeof(float));
  constexpr int kRows = 4;
  std::int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    backward_rows<kRows>(din + r * C, dweight, dbias, dout + r * C, in + r * C, weight, mean + r,
                         rstd + r, C, add_to_input);
  }
  for (; r < rows; ++r) {
    backward_rows<1>(din + r * C, dweight, dbias, dout + r * C, in + r * C, weight, mean + r,
                     rstd + r, C, add_to_input);
  }
}

}  // namespace

template <class T>
const LayerNormKernels<T>& layernorm_kernels() {
  static constexpr LayerNormKernels<T> kTable = {forward<T>, residual_forward<T>, backward<T>};
  return kTable;
}
template const LayerNormKernels<float>& layernorm_kernels();
template const LayerNormKernels<bf16>& layernorm_kernels();

}  // namespace llmc::cpu::LLMC_ISA
