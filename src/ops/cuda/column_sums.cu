#include <algorithm>

#include "ops/cuda/gelu.cuh"
#include "ops/cuda/kernel.cuh"
#include "ops/cuda/matmul_kernels.h"

namespace llmc::cuda {
namespace {

// In two stages: a block adds a few rows of a stripe of columns, and then the sums of these parts
// are added. The parts depend on the matrix's sizes only, so the result does not depend on the GPU.

constexpr int kWarps = 8;
constexpr std::int64_t kPartRows = 128;
constexpr std::int64_t kMaxParts = 4096;
constexpr int kTotalWarps = 32;
constexpr std::int64_t kMaxColumns =
    static_cast<std::int64_t>(kMatmulWorkspaceBytes / sizeof(float));

/// Columns of a stripe: those that a warp reads with one 16-byte access per lane.
template <class T>
constexpr int kStripe = kWarp* kVec<T>;

/// How a lane reaches its elements of a row: kVec<T> neighbours or, where rows are not aligned,
/// every kWarp-th of the stripe. Elements beyond the last column read as zero.
template <class T, bool kAligned>
struct Lane {
  static constexpr int kStep = kAligned ? 1 : kWarp;
  /// Rows that a warp has on their way to it.
  static constexpr int kRows = kAligned ? 4 : 1;

  /// Of the lane's first element in the stripe.
  __device__ static int offset(int lane) { return kAligned ? lane * kVec<T> : lane; }

  __device__ static Vec<T> load(const T* row, std::int64_t column, std::int64_t columns) {
    if constexpr (kAligned) {
      return Vec<T>::load(row + column);
    } else {
      Vec<T> values;
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) {
        const std::int64_t at = column + i * kStep;
        values.at[i] = at < columns ? row[at] : from_float<T>(0.0f);
      }
      return values;
    }
  }

  __device__ static void store(T* row, std::int64_t column, std::int64_t columns,
                               const Vec<T>& values) {
    if constexpr (kAligned) {
      values.store(row + column);
    } else {
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) {
        const std::int64_t at = column + i * kStep;
        if (at < columns) row[at] = values.at[i];
      }
    }
  }
};

/// Adds the matrix as it is.
template <class T, bool kAligned>
struct Plain {
  using Access = Lane<T, kAligned>;
  using Loaded = Vec<T>;
  const T* in;

  __device__ Loaded load(std::int64_t row, std::int64_t column, std::int64_t columns) const {
    return Access::load(in + row * columns, column, columns);
  }
  __device__ Vec<T> finish(const Loaded& loaded, std::int64_t, std::int64_t, std::int64_t) const {
    return loaded;
  }
};

/// Multiplies the matrix by gelu'(pre) in place, and adds what is stored.
template <class T, bool kAligned>
struct GeluBackward {
  using Access = Lane<T, kAligned>;
  struct Loaded {
    Vec<T> d, x;
  };
  T* d;
  const T* pre;

  __device__ Loaded load(std::int64_t row, std::int64_t column, std::int64_t columns) const {
    return {Access::load(d + row * columns, column, columns),
            Access::load(pre + row * columns, column, columns)};
  }
  __device__ Vec<T> finish(const Loaded& loaded, std::int64_t row, std::int64_t column,
                           std::int64_t columns) const {
    Vec<T> result;
#pragma unroll
    for (int i = 0; i < kVec<T>; ++i) {
      result.set(i, __fmul_rn(loaded.d.get(i), gelu_gradient(loaded.x.get(i))));
    }
    Access::store(d + row * columns, column, columns, result);
    return result;
  }
};

/// partials: (parts, C). Block (x, y) adds part y of stripe x.
template <class T, class Source>
__global__ void __launch_bounds__(kWarps* kWarp, 4)
    part_sums(float* partials, Source source, std::int64_t rows, std::int64_t columns,
              std::int64_t part_rows) {
  using Access = typename Source::Access;
  constexpr int kUnroll = Access::kRows;
  __shared__ float sums[kWarps][kStripe<T>];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kStripe<T>;
  const std::int64_t column = first + Access::offset(lane);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * part_rows;
  const std::int64_t end = min(rows, begin + part_rows);

  float sum[kVec<T>] = {};
  const auto add = [&](const typename Source::Loaded& loaded, std::int64_t row) {
    const Vec<T> values = source.finish(loaded, row, column, columns);
#pragma unroll
    for (int i = 0; i < kVec<T>; ++i) sum[i] += values.get(i);
  };
  if (column < columns) {
    std::int64_t row = begin + warp;
    for (; row + (kUnroll - 1) * kWarps < end; row += kUnroll * kWarps) {
      typename Source::Loaded loaded[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        loaded[u] = source.load(row + u * kWarps, column, columns);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) add(loaded[u], row + u * kWarps);
    }
    for (; row < end; row += kWarps) add(source.load(row, column, columns), row);
  }
#pragma unroll
  for (int i = 0; i < kVec<T>; ++i) {
    sums[warp][Access::offset(lane) + i * Access::kStep] = sum[i];
  }
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

/// How a matrix is cut into parts of rows.
struct Parts {
  std::int64_t rows;  // of a part
  std::int64_t count;
};

Parts parts_of(std::int64_t rows, std::int64_t columns) {
  if (columns > kMaxColumns) {
    fail(ErrorKind::kInput, "linear", "bias: expected at most ", kMaxColumns, " elements, got ",
         columns);
  }
  const std::int64_t most = std::min(kMaxParts, kMaxColumns / columns);
  const std::int64_t part_rows = std::max(kPartRows, ceil_div(rows, most));
  return {part_rows, ceil_div(rows, part_rows)};
}

/// sums (+)= column sums of what the source yields.
template <class T, class Source>
void add_columns(Stream::Impl& stream, const Tensor& sums, const Source& source, std::int64_t rows,
                 std::int64_t columns, bool accumulate) {
  const Parts parts = parts_of(rows, columns);
  auto* const partials = static_cast<float*>(stream.matmul_workspace.data());
  if (parts.count > 0) {
    const dim3 grid(static_cast<unsigned>(ceil_div(columns, kStripe<T>)),
                    static_cast<unsigned>(parts.count));
    part_sums<T>
        <<<grid, kWarps * kWarp, 0, stream.stream>>>(partials, source, rows, columns, parts.rows);
    check_launch("linear");
  }
  with_float_type("linear", "dbias", sums, [&]<class Out>(std::type_identity<Out>) {
    total_sums<Out>
        <<<static_cast<unsigned>(ceil_div(columns, kWarp)), kTotalWarps * kWarp, 0,
           stream.stream>>>(pointer<Out>(sums), partials, parts.count, columns, accumulate);
    check_launch("linear");
  });
}

}  // namespace

void column_sums(Stream::Impl& stream, const Tensor& sums, const Tensor& in, std::int64_t rows,
                 std::int64_t columns, bool accumulate) {
  if (columns == 0) return;
  with_float_type("linear", "dout", in, [&]<class T>(std::type_identity<T>) {
    const T* data = pointer<T>(in);
    if (aligned_rows<T>(columns, data)) {
      add_columns<T>(stream, sums, Plain<T, true>{data}, rows, columns, accumulate);
    } else {
      add_columns<T>(stream, sums, Plain<T, false>{data}, rows, columns, accumulate);
    }
  });
}

void gelu_backward_sums(Stream::Impl& stream, const Tensor& sums, const Tensor& d,
                        const Tensor& pre, std::int64_t rows, std::int64_t columns,
                        bool accumulate) {
  if (columns == 0) return;
  with_float_type("linear", "dpre", d, [&]<class T>(std::type_identity<T>) {
    T* data = pointer<T>(d);
    const T* x = pointer<T>(pre);
    if (aligned_rows<T>(columns, data, x)) {
      add_columns<T>(stream, sums, GeluBackward<T, true>{data, x}, rows, columns, accumulate);
    } else {
      add_columns<T>(stream, sums, GeluBackward<T, false>{data, x}, rows, columns, accumulate);
    }
  });
}

}  // namespace llmc::cuda
