#pragma once

// The kernels of layer normalisation. A row is cut into vectors of kVec<T> elements; which thread
// takes which vector depends on the channel count and the dtypes alone, never on the addresses, so
// that sums have the same bits wherever the tensors lie. Roundings that sums or results depend on
// are spelled out, so that every instantiation gives the same bits.

#include <cuda_pipeline.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernel.cuh"

namespace llmc::cuda {

/// Vector `v` of a row of `columns` elements; zeros beyond its end. kAligned: rows are whole
/// vectors at aligned addresses.
template <bool kAligned, class Vector, class T>
__device__ Vector load_part(const T* row, int v, int columns) {
  constexpr int kN = sizeof(Vector) / sizeof(T);
  if constexpr (kAligned) {
    return Vector::load(row + v * kN);
  } else {
    Vector x;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      x.at[i] = v * kN + i < columns ? row[v * kN + i] : from_float<T>(0.0f);
    }
    return x;
  }
}

template <bool kAligned, class Vector, class T>
__device__ void store_part(T* row, int v, int columns, const Vector& x) {
  constexpr int kN = sizeof(Vector) / sizeof(T);
  if constexpr (kAligned) {
    x.store(row + v * kN);
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (v * kN + i < columns) row[v * kN + i] = x.at[i];
    }
  }
}

/// Begins to copy such a vector to shared memory. The thread that fetched it may read it once it
/// has waited for the pipeline.
template <bool kAligned, class T>
__device__ void fetch_part(Vec<T>& to, const T* row, int v, int columns) {
  if constexpr (kAligned) {
    __pipeline_memcpy_async(&to, row + v * kVec<T>, sizeof(to));
  } else {
    to = load_part<false, Vec<T>>(row, v, columns);
  }
}

template <class T, class W>
struct ForwardArguments {
  T* sum;  ///< only with a residual
  T* out;
  float* mean;  ///< may be null
  float* rstd;  ///< may be null
  const T* a;
  const T* b;  ///< only with a residual
  const W* weight;
  const W* bias;  ///< may be null
  std::int64_t rows;
  int columns;
  float eps;
};

/// Threads of a block of forward_kernel when each row has kThreads of them.
template <int kThreads>
constexpr int kForwardBlock = kThreads == kWarp ? 128 : kThreads;

/// out = layernorm(a), or with kResidual sum = a + b, out = layernorm(sum). kThreads (a warp or a
/// block) per row, of which each thread holds up to kSlots vectors in registers; with kReload a row
/// may be longer, and the rest of it is read again for each pass.
template <class T, class W, bool kResidual, bool kAligned, int kThreads, int kSlots, bool kReload>
__global__ void __launch_bounds__(kForwardBlock<kThreads>)
    forward_kernel(const ForwardArguments<T, W> p) {
  constexpr int kN = kVec<T>;
  constexpr int kRows = kForwardBlock<kThreads> / kThreads;
  __shared__ float partials[2][kThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads;
  if (row >= p.rows) return;  // all threads of the row
  const int columns = p.columns;
  const int vectors = (columns + kN - 1) / kN;
  const std::int64_t at = row * columns;
  const auto load = [&](const T* from, int v) {
    return load_part<kAligned, Vec<T>>(from + at, v, columns);
  };
  const auto add = [&](Vec<T> x, const Vec<T>& y, int v) {
#pragma unroll
    for (int i = 0; i < kN; ++i) x.set(i, x.get(i) + y.get(i));
    store_part<kAligned>(p.sum + at, v, columns, x);
    return x;
  };

  Vec<T> held[kSlots] = {};
#pragma unroll
  for (int k = 0; k < kSlots; ++k) {
    const int v = thread + k * kThreads;
    if (v < vectors) held[k] = load(p.a, v);
  }
  if constexpr (kResidual) {
    Vec<T> other[kSlots] = {};
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      const int v = thread + k * kThreads;
      if (v < vectors) other[k] = load(p.b, v);
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      const int v = thread + k * kThreads;
      if (v < vectors) held[k] = add(held[k], other[k], v);
    }
    if constexpr (kReload) {
      for (int v = thread + kSlots * kThreads; v < vectors; v += kThreads) {
        add(load(p.a, v), load(p.b, v), v);
      }
    }
  }
  const auto for_each = [&](const auto& fn) {
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      const int v = thread + k * kThreads;
      if (v < vectors) fn(v, held[k]);
    }
    if constexpr (kReload) {
      for (int v = thread + kSlots * kThreads; v < vectors; v += kThreads) {
        fn(v, load(kResidual ? p.sum : p.a, v));
      }
    }
  };

  float sum = 0.0f;
  for_each([&](int, const Vec<T>& x) {
#pragma unroll
    for (int i = 0; i < kN; ++i) sum += x.get(i);
  });
  const auto count = static_cast<float>(columns);
  const float mean = block_sum<kThreads>(sum, partials[0]) / count;
  float squares = 0.0f;
  for_each([&](int v, const Vec<T>& x) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float centred = x.get(i) - mean;
      if (kAligned || v * kN + i < columns) squares = __fmaf_rn(centred, centred, squares);
    }
  });
  const float variance = block_sum<kThreads>(squares, partials[1]) / count;
  const float rstd = 1.0f / sqrtf(variance + p.eps);
  if (thread == 0) {
    if (p.mean != nullptr) p.mean[row] = mean;
    if (p.rstd != nullptr) p.rstd[row] = rstd;
  }
  for_each([&](int v, const Vec<T>& x) {
    const auto weight = load_part<kAligned, Vec<W, kN>>(p.weight, v, columns);
    Vec<W, kN> bias = {};
    if (p.bias != nullptr) bias = load_part<kAligned, Vec<W, kN>>(p.bias, v, columns);
    Vec<T> y;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float norm = __fmul_rn(x.get(i) - mean, rstd);
      y.set(i, __fmaf_rn(norm, weight.get(i), bias.get(i)));
    }
    store_part<kAligned>(p.out + at, v, columns, y);
  });
}

template <class T, class W>
struct BackwardArguments {
  T* din;
  float* partials;  ///< (groups, 2, columns): each group's dweight, then its dbias
  const T* dout;
  const T* in;
  const W* weight;
  const float* mean;
  const float* rstd;
  std::int64_t rows;
  std::int64_t rows_per_group;
  int columns;
  bool add_to_input;
};

/// The rows of one block of the backward pass, from row `begin` of the tensors. They are worked on
/// in rounds of kRows rows; where the last round is short of rows, it repeats the last one, without
/// counting it.
struct RowGroup {
  std::int64_t begin;
  int count;

  template <class Arguments>
  __device__ explicit RowGroup(const Arguments& p)
      : begin(blockIdx.x * p.rows_per_group),
        count(static_cast<int>(min(p.rows_per_group, p.rows - begin))) {}

  __device__ int row(int r) const { return min(r, count - 1); }
  /// Elements before row r, counted from `begin`.
  __device__ std::int64_t offset(int r, int columns) const {
    return static_cast<std::int64_t>(row(r)) * columns;
  }
};

/// Means and reciprocal deviations of rows first + [0, kRows) of a group; rows that do not count
/// have no deviation.
template <int kRows>
struct RowStatistics {
  float mean[kRows];
  float rstd[kRows];

  __device__ RowStatistics(const float* means, const float* rstds, const RowGroup& group,
                           int first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] = means[group.row(first + r)];
      rstd[r] = first + r < group.count ? rstds[group.row(first + r)] : 0.0f;
    }
  }
};

/// What the backward pass does with one vector of a row: norm = (in − mean)·rstd and
/// dnorm = dout·weight.
template <class T, class W>
struct BackwardPart {
  static constexpr int kN = kVec<T>;
  using Weight = Vec<W, kN>;
  using Sum = Vec<float, kN>;

  Vec<T> dout;
  Vec<T> in;
  float mean;
  float rstd;

  __device__ float norm(int i) const { return __fmul_rn(in.get(i) - mean, rstd); }

  /// Adds to the row's sums of dnorm and of dnorm·norm.
  __device__ void add_to_row(float& dnorm_sum, float& dnorm_norm_sum, const Weight& weight) const {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float dnorm = __fmul_rn(dout.get(i), weight.get(i));
      dnorm_sum = __fadd_rn(dnorm_sum, dnorm);
      dnorm_norm_sum = __fmaf_rn(dnorm, norm(i), dnorm_norm_sum);
    }
  }
  /// `counts`: 1, or 0 for a row that does not count.
  __device__ void add_to_columns(Sum& dweight, Sum& dbias, float counts) const {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      dweight.at[i] = __fmaf_rn(dout.get(i), norm(i), dweight.at[i]);
      dbias.at[i] = __fmaf_rn(dout.get(i), counts, dbias.at[i]);
    }
  }
  /// The gradient of the input, given the means of dnorm and dnorm·norm over the row, plus `past`.
  __device__ Vec<T> input_gradient(const Weight& weight, float dnorm_mean, float dnorm_norm_mean,
                                   const Vec<T>& past) const {
    Vec<T> din;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float dnorm = __fmul_rn(dout.get(i), weight.get(i));
      const float rest = __fmaf_rn(-norm(i), dnorm_norm_mean, dnorm - dnorm_mean);
      din.set(i, __fmaf_rn(rest, rstd, past.get(i)));
    }
    return din;
  }
};

/// Every value of `x` summed over the block in a fixed order, times `scale`. `partials`: shared
/// memory, one for each warp; may be reused after the next barrier.
template <int kCount>
__device__ Vec<float, kCount> block_sums(Vec<float, kCount> x, Vec<float, kCount>* partials,
                                         float scale) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x.at[i] = warp_sum(x.at[i]);
  if (threadIdx.x % kWarp == 0) partials[threadIdx.x / kWarp] = x;
  __syncthreads();
  Vec<float, kCount> sum = {};
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int warp = 0; warp < warps; ++warp) {
    const Vec<float, kCount> part = partials[warp];
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.at[i] += part.at[i];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum.at[i] *= scale;
  return sum;
}

/// Columns of the widest row that one vector a thread covers.
inline constexpr int kNarrowColumns = 4096;

/// Threads of the largest block of backward_narrow_kernel that works on kRows rows at once: kVec /
/// 2 of them up to half of those columns, else kVec / 4.
template <int kRows>
inline constexpr int kNarrowThreads = 1024 / kRows;

/// Bytes of shared memory that a block of backward_narrow_kernel asks for.
constexpr std::size_t narrow_bytes(int rows, unsigned threads) {
  return std::size_t{2 * 3 * 16} * static_cast<std::size_t>(rows) * threads;
}

/// The backward pass of one group of rows by a block that has a thread for each vector of a row, in
/// rounds of kRows rows. Each element is read once, into shared memory, one round ahead of its use;
/// a thread reads there only what it wrote itself. dweight and dbias stay in registers until the
/// end. The bound on registers lets all blocks that layernorm.cu's row groups ask for run at once.
template <class T, class W, bool kAligned, int kRows>
__global__ void __launch_bounds__(kNarrowThreads<kRows>, 2 * kRows / kVec<T> + 1)
    backward_narrow_kernel(const BackwardArguments<T, W> p) {
  using Part = BackwardPart<T, W>;
  using Sums = Vec<float, 2 * kRows>;
  constexpr int kN = kVec<T>;
  extern __shared__ int4 staged_memory[];
  __shared__ Sums partials[2][kNarrowThreads<kRows> / kWarp];
  auto* const staged = reinterpret_cast<Vec<T>*>(staged_memory) + threadIdx.x;
  const bool active = static_cast<int>(threadIdx.x) * kN < p.columns;
  // A thread beyond the row's end reads what its neighbour reads, under a weight of zero, and
  // stores nothing.
  const int v = min(static_cast<int>(threadIdx.x), (p.columns + kN - 1) / kN - 1);
  const RowGroup group(p);
  const T* const dout = p.dout + group.begin * p.columns;
  const T* const in = p.in + group.begin * p.columns;
  T* const din = p.din + group.begin * p.columns;
  const float scale = 1.0f / static_cast<float>(p.columns);

  const auto slot = [&](int buffer, int tensor, int r) -> Vec<T>& {
    return staged[((buffer * 3 + tensor) * kRows + r) * static_cast<int>(blockDim.x)];
  };
  const auto fetch = [&](int buffer, int first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = group.offset(first + r, p.columns);
      fetch_part<kAligned>(slot(buffer, 0, r), dout + at, v, p.columns);
      fetch_part<kAligned>(slot(buffer, 1, r), in + at, v, p.columns);
      if (p.add_to_input) fetch_part<kAligned>(slot(buffer, 2, r), din + at, v, p.columns);
    }
  };
  const auto statistics = [&](int first) {
    return RowStatistics<kRows>(p.mean + group.begin, p.rstd + group.begin, group, first);
  };

  typename Part::Weight weight = {};
  if (active) weight = load_part<kAligned, typename Part::Weight>(p.weight, v, p.columns);
  typename Part::Sum dweight = {};
  typename Part::Sum dbias = {};
  fetch(0, 0);
  __pipeline_commit();
  RowStatistics<kRows> next = statistics(0);
  int buffer = 0;
  for (int first = 0; first < group.count; first += kRows) {
    const RowStatistics<kRows> row = next;
    if (first + kRows < group.count) {
      fetch(1 - buffer, first + kRows);
      next = statistics(first + kRows);
    }
    __pipeline_commit();
    __pipeline_wait_prior(1);
    Sums sums = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Part part{slot(buffer, 0, r), slot(buffer, 1, r), row.mean[r], row.rstd[r]};
      part.add_to_row(sums.at[r], sums.at[kRows + r], weight);
      part.add_to_columns(dweight, dbias, first + r < group.count ? 1.0f : 0.0f);
    }
    sums = block_sums(sums, partials[buffer], scale);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Part part{slot(buffer, 0, r), slot(buffer, 1, r), row.mean[r], row.rstd[r]};
      Vec<T> past = {};
      if (p.add_to_input) past = slot(buffer, 2, r);
      const Vec<T> sum = part.input_gradient(weight, sums.at[r], sums.at[kRows + r], past);
      if (active && first + r < group.count) {
        store_part<kAligned>(din + group.offset(first + r, p.columns), v, p.columns, sum);
      }
    }
    buffer = 1 - buffer;
  }
  if (active) {
    float* const partial = p.partials + static_cast<std::int64_t>(blockIdx.x) * 2 * p.columns;
    store_part<kAligned>(partial, v, p.columns, dweight);
    store_part<kAligned>(partial + p.columns, v, p.columns, dbias);
  }
}

inline constexpr int kWideThreads = 512;

/// The same for rows of any length: they are read twice, the second time most often from a cache,
/// and dweight and dbias are summed up in memory.
template <class T, class W, bool kAligned>
__global__ void __launch_bounds__(kWideThreads)
    backward_wide_kernel(const BackwardArguments<T, W> p) {
  using Part = BackwardPart<T, W>;
  using Weight = typename Part::Weight;
  using Sum = typename Part::Sum;
  constexpr int kN = kVec<T>;
  constexpr int kRows = kN / 2;
  using Sums = Vec<float, 2 * kRows>;
  __shared__ Sums partials[2][kWideThreads / kWarp];
  const int vectors = (p.columns + kN - 1) / kN;
  const RowGroup group(p);
  const T* const dout = p.dout + group.begin * p.columns;
  const T* const in = p.in + group.begin * p.columns;
  T* const din = p.din + group.begin * p.columns;
  const float scale = 1.0f / static_cast<float>(p.columns);
  float* const dweight_sum = p.partials + static_cast<std::int64_t>(blockIdx.x) * 2 * p.columns;
  float* const dbias_sum = dweight_sum + p.columns;
  int buffer = 0;
  for (int first = 0; first < group.count; first += kRows) {
    const RowStatistics<kRows> row(p.mean + group.begin, p.rstd + group.begin, group, first);
    // fn(r, part, at): for each row of the round; `at` is where its vector's row begins.
    const auto for_each_row = [&](int v, const auto& fn) {
      Vec<T> dy[kRows];
      Vec<T> x[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t at = group.offset(first + r, p.columns);
        dy[r] = load_part<kAligned, Vec<T>>(dout + at, v, p.columns);
        x[r] = load_part<kAligned, Vec<T>>(in + at, v, p.columns);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        fn(r, Part{dy[r], x[r], row.mean[r], row.rstd[r]}, group.offset(first + r, p.columns));
      }
    };

    Sums sums = {};
    for (int v = static_cast<int>(threadIdx.x); v < vectors; v += kWideThreads) {
      const auto weight = load_part<kAligned, Weight>(p.weight, v, p.columns);
      for_each_row(v, [&](int r, const Part& part, std::int64_t) {
        part.add_to_row(sums.at[r], sums.at[kRows + r], weight);
      });
    }
    sums = block_sums(sums, partials[buffer], scale);
    for (int v = static_cast<int>(threadIdx.x); v < vectors; v += kWideThreads) {
      const auto weight = load_part<kAligned, Weight>(p.weight, v, p.columns);
      Sum dweight = {};
      Sum dbias = {};
      if (first > 0) {
        dweight = load_part<kAligned, Sum>(dweight_sum, v, p.columns);
        dbias = load_part<kAligned, Sum>(dbias_sum, v, p.columns);
      }
      for_each_row(v, [&](int r, const Part& part, std::int64_t at) {
        const bool counts = first + r < group.count;
        part.add_to_columns(dweight, dbias, counts ? 1.0f : 0.0f);
        if (!counts) return;
        Vec<T> past = {};
        if (p.add_to_input) past = load_part<kAligned, Vec<T>>(din + at, v, p.columns);
        store_part<kAligned>(din + at, v, p.columns,
                             part.input_gradient(weight, sums.at[r], sums.at[kRows + r], past));
      });
      store_part<kAligned>(dweight_sum, v, p.columns, dweight);
      store_part<kAligned>(dbias_sum, v, p.columns, dbias);
    }
    buffer = 1 - buffer;
  }
}

/// dweight and dbias (+)= the groups' partial sums, group by group in a fixed order. A block of
/// (kWarp, kWarp) threads takes kWarp columns of (groups, 2, columns). dbias may be null.
__global__ void __launch_bounds__(kWarp* kWarp)
    sum_groups_kernel(float* dweight, float* dbias, const float* partials, std::int64_t groups,
                      int columns, bool accumulate) {
  __shared__ float sums[kWarp][kWarp + 1];
  const int x = static_cast<int>(threadIdx.x);
  const int y = static_cast<int>(threadIdx.y);
  const std::int64_t stride = 2 * static_cast<std::int64_t>(columns);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + x;
  float sum = 0.0f;
  if (column < stride) {
#pragma unroll 8
    for (std::int64_t g = y; g < groups; g += kWarp) sum += partials[g * stride + column];
  }
  sums[x][y] = sum;
  __syncthreads();
  const std::int64_t to = static_cast<std::int64_t>(blockIdx.x) * kWarp + y;
  const float total = warp_sum(sums[y][x]);
  if (x != 0 || to >= stride) return;
  float* const out = to < columns       ? dweight + to
                     : dbias != nullptr ? dbias + (to - columns)
                                        : nullptr;
  if (out != nullptr) *out = accumulate ? *out + total : total;
}

}  // namespace llmc::cuda
