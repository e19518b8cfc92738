#include "llmc/ops/layernorm.h"

#include <algorithm>

#include "llmc/core/error.h"
#include "ops/check.h"
#include "ops/cuda/kernel.cuh"
#include "ops/cuda/layernorm_kernels.cuh"
#include "ops/layernorm_check.h"

namespace llmc {
namespace cuda {
namespace {

/// The kernels count columns in 32 bits.
int columns_of(const char* op, const LayerNormSizes& sizes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (sizes.channels > kMost) {
    fail(ErrorKind::kInput, op, "C: expected at most ", kMost, ", got ", sizes.channels);
  }
  return static_cast<int>(sizes.channels);
}

/// fn(T, W) with the types of activations and of weights.
template <class Fn>
void with_types(const char* op, const Tensor& activations, const Tensor& weight, const Fn& fn) {
  with_float_type(op, "in", activations, [&]<class T>(std::type_identity<T> t) {
    with_float_type(op, "weight", weight, [&]<class W>(std::type_identity<W> w) { fn(t, w); });
  });
}

template <int kThreads, int kSlots, bool kReload, class T, class W>
void launch_forward(cudaStream_t stream, const ForwardArguments<T, W>& p, bool aligned) {
  constexpr int kBlock = kForwardBlock<kThreads>;
  const auto blocks = static_cast<unsigned>(ceil_div(p.rows, kBlock / kThreads));
  const auto launch = [&](auto residual, auto aligned_rows) {
    forward_kernel<T, W, residual(), aligned_rows(), kThreads, kSlots, kReload>
        <<<blocks, kBlock, 0, stream>>>(p);
  };
  if (p.sum != nullptr && aligned) {
    launch(std::true_type(), std::true_type());
  } else if (p.sum != nullptr) {
    launch(std::true_type(), std::false_type());
  } else if (aligned) {
    launch(std::false_type(), std::true_type());
  } else {
    launch(std::false_type(), std::false_type());
  }
}

/// With p.sum the op with a residual. A warp per row while its registers hold the row.
template <class T, class W>
void forward(Stream& stream, const char* op, const ForwardArguments<T, W>& p) {
  if (p.rows == 0) return;
  const CurrentDevice current(stream.impl().ordinal());
  cudaStream_t on = stream.impl().stream;
  const bool aligned =
      aligned_rows<T>(p.columns, p.sum, p.out, p.a, p.b) && aligned_rows<T>(0, p.weight, p.bias);
  const std::int64_t vectors = ceil_div(p.columns, kVec<T>);
  if (vectors <= 2 * 32) {
    launch_forward<32, 2, false>(on, p, aligned);
  } else if (vectors <= 4 * 32) {
    launch_forward<32, 4, false>(on, p, aligned);
  } else if (vectors <= 8 * 32) {
    launch_forward<32, 8, false>(on, p, aligned);
  } else if (vectors <= 4 * 256) {
    launch_forward<256, 4, false>(on, p, aligned);
  } else {
    launch_forward<256, 8, true>(on, p, aligned);
  }
  check_launch(op);
}

/// Rows whose part of dweight and dbias one block sums. It depends on the sizes alone, so that the
/// result does not depend on the GPU. The number of groups suits one load of an H200: on each of
/// its 132 multiprocessors as many blocks as there is room for.
std::int64_t rows_per_group(std::int64_t rows, std::int64_t channels) {
  constexpr std::int64_t kMinRows = 8;
  const std::int64_t blocks = std::clamp<std::int64_t>(kNarrowColumns / channels, 1, 8);
  return std::max(kMinRows, ceil_div(rows, 132 * blocks));
}
std::int64_t groups_of(std::int64_t rows, std::int64_t channels) {
  return ceil_div(rows, rows_per_group(rows, channels));
}

template <bool kAligned, int kRows, class T, class W>
void launch_backward_narrow(cudaStream_t stream, unsigned groups,
                            const BackwardArguments<T, W>& p) {
  const auto threads = static_cast<unsigned>(ceil_div(p.columns, kVec<T> * kWarp) * kWarp);
  const std::size_t bytes = narrow_bytes(kRows, threads);
  const auto kernel = backward_narrow_kernel<T, W, kAligned, kRows>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of layernorm_backward");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "shared memory of layernorm_backward");
  kernel<<<groups, threads, bytes, stream>>>(p);
}

template <bool kAligned, class T, class W>
void launch_backward(cudaStream_t stream, const BackwardArguments<T, W>& p) {
  const auto groups = static_cast<unsigned>(ceil_div(p.rows, p.rows_per_group));
  if (p.columns <= kNarrowColumns / 2) {
    launch_backward_narrow<kAligned, kVec<T> / 2>(stream, groups, p);
  } else if (p.columns <= kNarrowColumns) {
    launch_backward_narrow<kAligned, kVec<T> / 4>(stream, groups, p);
  } else {
    backward_wide_kernel<T, W, kAligned><<<groups, kWideThreads, 0, stream>>>(p);
  }
}

}  // namespace
}  // namespace cuda

void layernorm_forward(Stream& stream, const Tensor& out, const Tensor& mean, const Tensor& rstd,
                       const Tensor& in, const Tensor& weight, const Tensor& bias, float eps) {
  constexpr const char* kOp = "layernorm_forward";
  const LayerNormSizes sizes = check_layernorm_forward(kOp, out, mean, rstd, in, weight, bias);
  const int columns = cuda::columns_of(kOp, sizes);
  cuda::with_types(
      kOp, in, weight, [&]<class T, class W>(std::type_identity<T>, std::type_identity<W>) {
        cuda::forward<T, W>(
            stream, kOp,
            {nullptr, cuda::pointer<T>(out), cuda::pointer<float>(mean), cuda::pointer<float>(rstd),
             cuda::pointer<T>(in), nullptr, cuda::pointer<W>(weight), cuda::pointer<W>(bias),
             sizes.rows, columns, eps});
      });
}

void residual_layernorm_forward(Stream& stream, const Tensor& sum, const Tensor& out,
                                const Tensor& mean, const Tensor& rstd, const Tensor& a,
                                const Tensor& b, const Tensor& weight, const Tensor& bias,
                                float eps) {
  constexpr const char* kOp = "residual_layernorm_forward";
  const LayerNormSizes sizes =
      check_residual_layernorm_forward(kOp, sum, out, mean, rstd, a, b, weight, bias);
  const int columns = cuda::columns_of(kOp, sizes);
  cuda::with_types(
      kOp, a, weight, [&]<class T, class W>(std::type_identity<T>, std::type_identity<W>) {
        cuda::forward<T, W>(
            stream, kOp,
            {cuda::pointer<T>(sum), cuda::pointer<T>(out), cuda::pointer<float>(mean),
             cuda::pointer<float>(rstd), cuda::pointer<T>(a), cuda::pointer<T>(b),
             cuda::pointer<W>(weight), cuda::pointer<W>(bias), sizes.rows, columns, eps});
      });
}

std::int64_t layernorm_backward_scratch(const Stream&, std::int64_t rows, std::int64_t channels) {
  return cuda::groups_of(rows, channels) * 2 * channels * static_cast<std::int64_t>(sizeof(float));
}

void layernorm_backward(Stream& stream, const Tensor& din, const Tensor& dweight,
                        const Tensor& dbias, const Tensor& dout, const Tensor& in,
                        const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                        const Tensor& scratch, bool add_to_input, bool accumulate) {
  constexpr const char* kOp = "layernorm_backward";
  const LayerNormSizes sizes =
      check_layernorm_backward(kOp, din, dweight, dbias, dout, in, weight, mean, rstd);
  expect_scratch(kOp, scratch, layernorm_backward_scratch(stream, sizes.rows, sizes.channels));
  const int columns = cuda::columns_of(kOp, sizes);
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cudaStream_t on = stream.impl().stream;
  auto* const partials = cuda::pointer<float>(scratch);
  if (sizes.rows > 0) {
    cuda::with_types(
        kOp, in, weight, [&]<class T, class W>(std::type_identity<T>, std::type_identity<W>) {
          const cuda::BackwardArguments<T, W> p{cuda::pointer<T>(din),
                                                partials,
                                                cuda::pointer<T>(dout),
                                                cuda::pointer<T>(in),
                                                cuda::pointer<W>(weight),
                                                cuda::pointer<float>(mean),
                                                cuda::pointer<float>(rstd),
                                                sizes.rows,
                                                cuda::rows_per_group(sizes.rows, sizes.channels),
                                                columns,
                                                add_to_input};
          if (cuda::aligned_rows<T>(columns, p.din, p.dout, p.in) &&
              cuda::aligned_rows<T>(0, p.weight, partials)) {
            cuda::launch_backward<true>(on, p);
          } else {
            cuda::launch_backward<false>(on, p);
          }
        });
    cuda::check_launch(kOp);
  }
  const auto blocks = static_cast<unsigned>(cuda::ceil_div(2 * sizes.channels, cuda::kWarp));
  cuda::sum_groups_kernel<<<blocks, dim3(cuda::kWarp, cuda::kWarp), 0, on>>>(
      cuda::pointer<float>(dweight), cuda::pointer<float>(dbias), partials,
      cuda::groups_of(sizes.rows, sizes.channels), columns, accumulate);
  cuda::check_launch(kOp);
}

}  // namespace llmc
