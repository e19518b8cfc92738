#pragma once

// The kernels of layer normalisation. A row is cut into vectors of kVec<T> elements; which thread
// takes which vector depends on the channel count and the dtypes alone, never on the addresses, so
// that sums have the same bits wherever the tensors lie. Roundings that sums or results depend on
// are spelled out, so that every instantiation gives the same bits.

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

/// Rows that a block of the backward pass works on at once.
template <class T>
inline constexpr int kBackwardRows = kVec<T> / 2;

/// Means and reciprocal deviations of rows [first, end), zeros beyond them.
template <int kRows>
struct RowStatistics {
  float mean[kRows];
  float rstd[kRows];

  template <class Arguments>
  __device__ RowStatistics(const Arguments& p, std::int64_t first, std::int64_t end) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] = first + r < end ? p.mean[first + r] : 0.0f;
      rstd[r] = first + r < end ? p.rstd[first + r] : 0.0f;
    }
  }
  __device__ float norm(int r, float x) const {
    return __fmul_rn(x - mean[r], rstd[r]);
  }
};

/// Per row the sum of dnorm, then per row that of dnorm·norm, where norm = (in − mean)·rstd and
/// dnorm = dout·weight.
template <class T>
using RowSums = Vec<float, 2 * kBackwardRows<T>>;

/// Vector `v` of rows [first, end), zeros beyond them: what one thread has in hand.
template <class T, class W, bool kAligned>
struct BackwardTile {
  static constexpr int kN = kVec<T>;
  static constexpr int kRows = kBackwardRows<T>;
  using Arguments = BackwardArguments<T, W>;
  using Statistics = RowStatistics<kRows>;
  using Weight = Vec<W, kN>;
  using Sum = Vec<float, kN>;

  Vec<T> dout[kRows];
  Vec<T> in[kRows];
  Vec<T> din[kRows];

  __device__ static void load_rows(Vec<T> (&to)[kRows], const T* from, const Arguments& p,
                                   std::int64_t first, std::int64_t end, int v) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      to[r] = {};
      if (first + r < end) {
        to[r] = load_part<kAligned, Vec<T>>(from + (first + r) * p.columns, v, p.columns);
      }
    }
  }
  __device__ void load(const Arguments& p, std::int64_t first, std::int64_t end, int v) {
    load_rows(dout, p.dout, p, first, end, v);
    load_rows(in, p.in, p, first, end, v);
  }
  __device__ void load_din(const Arguments& p, std::int64_t first, std::int64_t end, int v) {
    load_rows(din, p.din, p, first, p.add_to_input ? end : first, v);
  }

  __device__ void add_to(RowSums<T>& sums, const Weight& weight, const Statistics& row) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float norm = row.norm(r, in[r].get(i));
        const float dnorm = __fmul_rn(dout[r].get(i), weight.get(i));
        sums.at[r] = __fadd_rn(sums.at[r], dnorm);
        sums.at[kRows + r] = __fmaf_rn(dnorm, norm, sums.at[kRows + r]);
      }
    }
  }

  __device__ void add_to(Sum& dweight, Sum& dbias, const Statistics& row) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float norm = row.norm(r, in[r].get(i));
        dweight.at[i] = __fmaf_rn(dout[r].get(i), norm, dweight.at[i]);
        dbias.at[i] = __fadd_rn(dbias.at[i], dout[r].get(i));
      }
    }
  }

  /// Adds the rows' gradient to din and stores it. `means`: RowSums over the row's length.
  __device__ void store_din(const Arguments& p, std::int64_t first, std::int64_t end, int v,
                            const Weight& weight, const Statistics& row, const RowSums<T>& means) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= end) break;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float norm = row.norm(r, in[r].get(i));
        const float dnorm = __fmul_rn(dout[r].get(i), weight.get(i));
        const float rest = __fmaf_rn(-norm, means.at[kRows + r], dnorm - means.at[r]);
        din[r].set(i, __fmaf_rn(rest, row.rstd[r], din[r].get(i)));
      }
      store_part<kAligned>(p.din + (first + r) * p.columns, v, p.columns, din[r]);
    }
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
#pragma unroll 4
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

/// The backward pass of one group of rows by a block that has a thread for each vector of a row.
/// Each element is read once; dweight and dbias stay in registers until the end.
template <class T, class W, bool kAligned>
__global__ void __launch_bounds__(kNarrowColumns / kVec<T>)
    backward_narrow_kernel(const BackwardArguments<T, W> p) {
  using Tile = BackwardTile<T, W, kAligned>;
  constexpr int kN = Tile::kN;
  __shared__ RowSums<T> partials[2][kNarrowColumns / kN / kWarp];
  const int v = static_cast<int>(threadIdx.x);
  const bool active = v * kN < p.columns;
  const std::int64_t begin = blockIdx.x * p.rows_per_group;
  const std::int64_t end = min(begin + p.rows_per_group, p.rows);
  const float scale = 1.0f / static_cast<float>(p.columns);
  typename Tile::Weight weight = {};
  if (active) weight = load_part<kAligned, typename Tile::Weight>(p.weight, v, p.columns);
  typename Tile::Sum dweight = {};
  typename Tile::Sum dbias = {};
  int buffer = 0;
  for (std::int64_t first = begin; first < end; first += Tile::kRows) {
    const std::int64_t last = active ? end : first;
    Tile tile;
    tile.load(p, first, last, v);
    tile.load_din(p, first, last, v);
    const typename Tile::Statistics row(p, first, end);
    RowSums<T> sums = {};
    tile.add_to(sums, weight, row);
    tile.add_to(dweight, dbias, row);
    sums = block_sums(sums, partials[buffer], scale);
    tile.store_din(p, first, last, v, weight, row, sums);
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
  using Tile = BackwardTile<T, W, kAligned>;
  constexpr int kN = Tile::kN;
  __shared__ RowSums<T> partials[2][kWideThreads / kWarp];
  const int vectors = (p.columns + kN - 1) / kN;
  const std::int64_t begin = blockIdx.x * p.rows_per_group;
  const std::int64_t end = min(begin + p.rows_per_group, p.rows);
  const float scale = 1.0f / static_cast<float>(p.columns);
  float* const dweight_sum = p.partials + static_cast<std::int64_t>(blockIdx.x) * 2 * p.columns;
  float* const dbias_sum = dweight_sum + p.columns;
  int buffer = 0;
  for (std::int64_t first = begin; first < end; first += Tile::kRows) {
    const typename Tile::Statistics row(p, first, end);
    RowSums<T> sums = {};
    Tile tile;
    for (int v = static_cast<int>(threadIdx.x); v < vectors; v += kWideThreads) {
      const auto weight = load_part<kAligned, typename Tile::Weight>(p.weight, v, p.columns);
      tile.load(p, first, end, v);
      tile.add_to(sums, weight, row);
    }
    sums = block_sums(sums, partials[buffer], scale);
    for (int v = static_cast<int>(threadIdx.x); v < vectors; v += kWideThreads) {
      const auto weight = load_part<kAligned, typename Tile::Weight>(p.weight, v, p.columns);
      tile.load(p, first, end, v);
      tile.load_din(p, first, end, v);
      typename Tile::Sum dweight = {};
      typename Tile::Sum dbias = {};
      if (first > begin) {
        dweight = load_part<kAligned, typename Tile::Sum>(dweight_sum, v, p.columns);
        dbias = load_part<kAligned, typename Tile::Sum>(dbias_sum, v, p.columns);
      }
      tile.add_to(dweight, dbias, row);
      store_part<kAligned>(dweight_sum, v, p.columns, dweight);
      store_part<kAligned>(dbias_sum, v, p.columns, dbias);
      tile.store_din(p, first, end, v, weight, row, sums);
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
