#include <algorithm>

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/matmul_kernels.h"

namespace llmc::cuda {
namespace {

// In two stages: a block adds a few rows of a stripe of columns, and then the sums of these parts
// are added. The parts depend on the matrix's sizes only, so the result does not depend on the GPU.

constexpr int kWarps = 8;
constexpr int kUnroll = 4;  // rows that a warp has on their way to it
constexpr std::int64_t kPartRows = 128;
constexpr std::int64_t kMaxParts = 4096;
constexpr int kTotalWarps = 32;
constexpr std::int64_t kMaxColumns =
    static_cast<std::int64_t>(kMatmulWorkspaceBytes / sizeof(float));

/// Columns of a stripe: those that a warp reads with one 16-byte access per lane.
template <class T>
constexpr int kStripe = kWarp* kVec<T>;

/// The elements of a row that belong to a lane: kVec<T> neighbours or, where rows are not aligned,
/// every kWarp-th of the stripe. Zero beyond the last column.
template <class T, bool kAligned>
__device__ Vec<T> load_columns(const T* row, std::int64_t column, std::int64_t columns) {
  if constexpr (kAligned) {
    return Vec<T>::load(row + column);
  } else {
    Vec<T> values;
#pragma unroll
    for (int i = 0; i < kVec<T>; ++i) {
      const std::int64_t at = column + i * kWarp;
      values.at[i] = at < columns ? row[at] : from_float<T>(0.0f);
    }
    return values;
  }
}

/// partials: (parts, C). Block (x, y) adds part y of stripe x.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kWarps* kWarp)
    part_sums(float* partials, const T* in, std::int64_t rows, std::int64_t columns,
              std::int64_t part_rows) {
  __shared__ float sums[kWarps][kStripe<T>];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kStripe<T>;
  const int in_stripe = kAligned ? lane * kVec<T> : lane;
  const std::int64_t column = first + in_stripe;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * part_rows;
  const std::int64_t end = min(rows, begin + part_rows);

  float sum[kVec<T>] = {};
  if (column < columns) {
    std::int64_t row = begin + warp;
    for (; row + (kUnroll - 1) * kWarps < end; row += kUnroll * kWarps) {
      Vec<T> values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        values[u] = load_columns<T, kAligned>(in + (row + u * kWarps) * columns, column, columns);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < kVec<T>; ++i) sum[i] += values[u].get(i);
      }
    }
    for (; row < end; row += kWarps) {
      const Vec<T> values = load_columns<T, kAligned>(in + row * columns, column, columns);
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) sum[i] += values.get(i);
    }
  }
#pragma unroll
  for (int i = 0; i < kVec<T>; ++i) sums[warp][in_stripe + (kAligned ? i : i * kWarp)] = sum[i];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= kStripe<T> || first + mine >= columns) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w][mine];
  partials[blockIdx.y * columns + first + mine] = total;
}

/// Block x adds the parts of kWarp columns. out: (C).
template <class T>
__global__ void __launch_bounds__(kTotalWarps* kWarp)
    total_sums(T* out, const float* partials, std::int64_t parts, std::int64_t columns,
               bool accumulate) {
  __shared__ float sums[kTotalWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t part = warp; part < parts; part += kTotalWarps) {
      sum += partials[part * columns + column];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kTotalWarps; ++w) total += sums[w][lane];
  out[column] = from_float<T>(accumulate ? to_float(out[column]) + total : total);
}

}  // namespace

void column_sums(Stream::Impl& stream, const Tensor& sums, const Tensor& in, std::int64_t rows,
                 std::int64_t columns, bool accumulate) {
  if (columns == 0) return;
  if (columns > kMaxColumns) {
    fail(ErrorKind::kInput, "linear", "bias: expected at most ", kMaxColumns, " elements, got ",
         columns);
  }
  const std::int64_t most = std::min(kMaxParts, kMaxColumns / columns);
  const std::int64_t part_rows = std::max(kPartRows, ceil_div(rows, most));
  const std::int64_t parts = ceil_div(rows, part_rows);
  auto* const partials = static_cast<float*>(stream.matmul_workspace.data());
  if (parts > 0) {
    with_float_type("linear", "dout", in, [&]<class T>(std::type_identity<T>) {
      const dim3 grid(static_cast<unsigned>(ceil_div(columns, kStripe<T>)),
                      static_cast<unsigned>(parts));
      const T* data = pointer<T>(in);
      const auto kernel = aligned_rows<T>(columns, data) ? part_sums<T, true> : part_sums<T, false>;
      kernel<<<grid, kWarps * kWarp, 0, stream.stream>>>(partials, data, rows, columns, part_rows);
      check_launch("linear");
    });
  }
  with_float_type("linear", "dbias", sums, [&]<class T>(std::type_identity<T>) {
    total_sums<T><<<static_cast<unsigned>(ceil_div(columns, kWarp)), kTotalWarps * kWarp, 0,
                    stream.stream>>>(pointer<T>(sums), partials, parts, columns, accumulate);
    check_launch("linear");
  });
}

}  // namespace llmc::cuda
