#include <algorithm>

#include "ops/cuda/gelu.cuh"
#include "ops/cuda/kernel.cuh"
#include "ops/cuda/matmul_kernels.h"
#include "ops/cuda/ptx.cuh"

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
/// every kWarp-th of the stripe. `left`: columns from the lane's first element on.
template <class T, bool kAligned>
struct Lane {
  static constexpr int kStep = kAligned ? 1 : kWarp;

  /// Of the lane's first element in the stripe.
  __device__ static int offset(int lane) { return kAligned ? lane * kVec<T> : lane; }

  /// Begins to copy them to shared memory, zeros beyond the last column, or nothing of use unless
  /// `valid`. This thread may read them once it has waited for the copies.
  __device__ static void fetch(Vec<T>& to, const T* p, std::int64_t left, bool valid) {
    if constexpr (kAligned) {
      copy_16_async(&to, p, valid);
    } else if (valid) {
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) {
        to.at[i] = i * kStep < left ? p[i * kStep] : from_float<T>(0.0f);
      }
    }
  }

  __device__ static void store(T* p, std::int64_t left, const Vec<T>& values) {
    if constexpr (kAligned) {
      store_16(p, *reinterpret_cast<const int4*>(&values));
    } else {
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) {
        if (i * kStep < left) p[i * kStep] = values.at[i];
      }
    }
  }
};

/// Adds the matrix as it is.
template <class T, bool kAligned>
struct Plain {
  using Access = Lane<T, kAligned>;
  static constexpr int kInputs = 1;
  const T* inputs[kInputs];

  __device__ Vec<T> finish(const Vec<T> (&in)[kInputs], std::int64_t, std::int64_t) const {
    return in[0];
  }
};

/// Multiplies the matrix by gelu'(pre) in place, and adds what is stored. Also stores gelu(pre) if
/// kKeep.
template <class T, bool kAligned, bool kKeep>
struct GeluBackward {
  using Access = Lane<T, kAligned>;
  static constexpr int kInputs = 2;
  const T* inputs[kInputs];  // d, pre
  T* d;
  T* gelu;

  __device__ Vec<T> finish(const Vec<T> (&in)[kInputs], std::int64_t at, std::int64_t left) const {
    Vec<T> result;
    Vec<T> value;
#pragma unroll
    for (int i = 0; i < kVec<T>; ++i) {
      const Gelu of_pre(in[1].get(i));
      result.set(i, __fmul_rn(in[0].get(i), of_pre.gradient()));
      if constexpr (kKeep) value.set(i, of_pre.value);
    }
    Access::store(d + at, left, result);
    if constexpr (kKeep) Access::store(gelu + at, left, value);
    return result;
  }
};

/// What a block shares: the rows on their way to its threads, in a ring for each of them, and then
/// the sums of its warps. Loads to registers ahead of their use would be for nothing: the compiler
/// moves them back to it when registers get short.
template <class T, int kInputs>
union Shared {
  static constexpr int kRing = 8 / kInputs;
  Vec<T> rows[kRing][kInputs][kWarps * kWarp];
  float sums[kWarps][kStripe<T>];
};

/// partials: (parts, C). Block (x, y) adds part y of stripe x.
template <class T, class Source>
__global__ void __launch_bounds__(kWarps* kWarp, 5)
    part_sums(float* partials, Source source, std::int64_t rows, std::int64_t columns,
              std::int64_t part_rows) {
  using Access = typename Source::Access;
  constexpr int kInputs = Source::kInputs;
  constexpr int kRing = Shared<T, kInputs>::kRing;
  __shared__ Shared<T, kInputs> shared;
  const int mine = static_cast<int>(threadIdx.x);
  const int warp = mine / kWarp;
  const int lane = mine % kWarp;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kStripe<T>;
  const std::int64_t column = first + Access::offset(lane);
  const std::int64_t left = columns - column;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * part_rows + warp;
  const std::int64_t end = min(rows, begin - warp + part_rows);
  float sum[kVec<T>] = {};
  if (left > 0 && begin < end) {
    const int count = static_cast<int>(ceil_div(end - begin, kWarps));
    std::int64_t at = begin * columns + column;
    std::int64_t next = at;
    const auto fetch = [&](int row) {
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
        Access::fetch(shared.rows[row % kRing][k][mine], source.inputs[k] + next, left,
                      row < count);
      }
      end_copy_group();
      next += kWarps * columns;
    };
#pragma unroll
    for (int row = 0; row < kRing - 1; ++row) fetch(row);
    for (int row = 0; row < count; ++row, at += kWarps * columns) {
      fetch(row + kRing - 1);
      wait_for_copies<kRing - 1>();
      Vec<T> in[kInputs];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) in[k] = shared.rows[row % kRing][k][mine];
      const Vec<T> values = source.finish(in, at, left);
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) sum[i] += values.get(i);
    }
    wait_for_copies<0>();  // those beyond the last row write zeros
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kVec<T>; ++i) {
    shared.sums[warp][Access::offset(lane) + i * Access::kStep] = sum[i];
  }
  __syncthreads();
  if (mine >= kStripe<T> || first + mine >= columns) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += shared.sums[w][mine];
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
#pragma unroll 16
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

/// sums (+)= column sums of what the source yields. sums may be empty.
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
  if (!sums) return;
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
      add_columns<T>(stream, sums, Plain<T, true>{{data}}, rows, columns, accumulate);
    } else {
      add_columns<T>(stream, sums, Plain<T, false>{{data}}, rows, columns, accumulate);
    }
  });
}

void gelu_backward_sums(Stream::Impl& stream, const Tensor& sums, const Tensor& d,
                        const Tensor& gelu, const Tensor& pre, std::int64_t rows,
                        std::int64_t columns, bool accumulate) {
  if (columns == 0) return;
  with_float_type("linear", "dpre", d, [&]<class T>(std::type_identity<T>) {
    T* const data = pointer<T>(d);
    T* const value = pointer<T>(gelu);
    const T* const x = pointer<T>(pre);
    const auto run = [&](auto aligned, auto keep) {
      const GeluBackward<T, aligned(), keep()> source{{data, x}, data, value};
      add_columns<T>(stream, sums, source, rows, columns, accumulate);
    };
    const auto run_with = [&](auto aligned) {
      if (gelu) {
        run(aligned, std::true_type());
      } else {
        run(aligned, std::false_type());
      }
    };
    if (aligned_rows<T>(columns, data, value, x)) {
      run_with(std::true_type());
    } else {
      run_with(std::false_type());
    }
  });
}

}  // namespace llmc::cuda
