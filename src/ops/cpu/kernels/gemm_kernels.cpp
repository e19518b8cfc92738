#include "ops/cpu/kernels/gemm_kernels.h"

#include "ops/cpu/kernels/gelu.h"
#include "ops/cpu/kernels/gemm_pack.h"
#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {
namespace {

// The register tile: kTileRows rows of kTileVectors vectors are accumulated at once. With 32
// registers 8 × 3 vectors, with 16 registers 4 × 3, leaving 3 for the vectors of b and one for the
// broadcast value of a.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 8;
constexpr int kTileVectors = 3;
#else
constexpr int kTileRows = 4;
constexpr int kTileVectors = 3;
#endif
constexpr int kTileCols = kTileVectors * kWidth;

/// Loads n ≤ kWidth values from index i of an f32 or bf16 array.
inline VecF load_as(const void* data, DType type, std::int64_t i, std::int64_t n) {
  if (type == DType::kF32) {
    const auto* p = static_cast<const float*>(data) + i;
    return n == kWidth ? load(p) : load_partial(p, n);
  }
  const auto* p = static_cast<const bf16*>(data) + i;
  return n == kWidth ? load(p) : load_partial(p, n);
}
inline void store_as(void* data, DType type, std::int64_t i, VecF v, std::int64_t n) {
  if (type == DType::kF32) {
    auto* p = static_cast<float*>(data) + i;
    n == kWidth ? store(p, v) : store_partial(p, v, n);
  } else {
    auto* p = static_cast<bf16*>(data) + i;
    n == kWidth ? store(p, v) : store_partial(p, v, n);
  }
}
/// What a store and a load of v give.
inline VecF as_stored(VecF v, DType type) {
  if (type == DType::kF32) return v;
  bf16 rounded[kWidth];
  store(rounded, v);
  return load(rounded);
}

/// Applies bias and epilogue to n finished sums at index i of c and stores them.
inline void finish(const GemmOutput& out, std::int64_t i, std::int64_t col, VecF v,
                   std::int64_t n) {
  if (out.bias != nullptr) v += load_as(out.bias, out.bias_type, col, n);
  switch (out.epilogue) {
    case GemmEpilogue::kNone:
      break;
    case GemmEpilogue::kGelu:
      if (out.pre != nullptr) store_as(out.pre, out.pre_type, i, v, n);
      v = gelu(as_stored(v, out.pre_type));
      break;
    case GemmEpilogue::kGeluGradient:
      v = v * gelu_gradient(load_as(out.pre, out.pre_type, i, n));
      break;
  }
  store_as(out.c, out.c_type, i, v, n);
}

/// Sums of one tile, on their way from the accumulators to the output.
struct Tile {
  alignas(64) float sums[kTileRows][kTileCols];
};

/// Adds a tile's sums to what went before and stores them, for any block and any output.
void store_tile(const Tile& tile, const GemmBlock& block, const GemmOutput& out, std::int64_t row,
                std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* partial = block.partial + (row + i) * block.partial_ld;
    const std::int64_t c_row = (block.row + row + i) * out.ld + block.col;
    for (std::int64_t j = 0; j < block.cols; j += kWidth) {
      const std::int64_t n = block.cols - j < kWidth ? block.cols - j : kWidth;
      VecF v = load(&tile.sums[i][j]) * out.alpha;
      if (!block.first) {
        v += load_as(partial, DType::kF32, j, n);
      } else if (out.beta != 0.0f) {
        v += out.beta * load_as(out.c, out.c_type, c_row + j, n);
      }
      if (block.last) {
        finish(out, c_row + j, block.col + j, v, n);
      } else {
        store_as(partial, DType::kF32, j, v, n);
      }
    }
  }
}

/// Takes finished accumulators to a Tile.
struct ToTile {
  Tile& tile;
  void operator()(int i, int j, VecF sum) const { store(&tile.sums[i][j * kWidth], sum); }
};

/// Takes finished accumulators straight to the fp32 output, for the usual cases.
template <bool kAdd, bool kBias>
struct ToOutput {
  float* c;
  std::int64_t ld;
  float alpha;
  const float* bias;
  void operator()(int i, int j, VecF sum) const {
    float* p = c + i * ld + j * kWidth;
    VecF v = sum * alpha;
    if constexpr (kAdd) v += load(p);
    if constexpr (kBias) v += load(bias + j * kWidth);
    store(p, v);
  }
};

/// Where a tile finds its inputs: element (i, d) of a is at i·row_stride + d·depth_stride.
struct TileInput {
  const float* a;
  std::int64_t row_stride, depth_stride;
  const float* b;
  std::int64_t b_stride;
  std::int64_t depth;
};

/// The inner loop: R rows of a times a strip of b. Each depth adds the outer product of a column of
/// a and a row of the strip to the sums, which stay in registers.
template <int R, class Sink>
void multiply_tile(const TileInput& in, const Sink& sink) {
  constexpr int kGroup = 3;  // rows that one pointer and the stride, once and twice, can address
  const auto [first, row_stride, depth_stride, first_b, b_stride, depth] = in;
  const float* a[(R + kGroup - 1) / kGroup];
#pragma GCC unroll 16
  for (int i = 0; i < R; i += kGroup) a[i / kGroup] = first + i * row_stride;
  const float* b = first_b;
  VecF sums[R][kTileVectors] = {};
  for (std::int64_t d = 0; d < depth; ++d) {
    VecF row[kTileVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j) row[j] = load(b + j * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const VecF value = splat(a[i / kGroup][i % kGroup * row_stride]);
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) sums[i][j] += value * row[j];
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; i += kGroup) a[i / kGroup] += depth_stride;
    b += b_stride;
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j) sink(i, j, sums[i][j]);
  }
}

/// multiply_tile for the last `rows` < kTileRows.
template <int R = kTileRows - 1>
void multiply_edge(std::int64_t rows, const TileInput& in, const ToTile& sink) {
  if (rows == R) {
    multiply_tile<R>(in, sink);
  } else if constexpr (R > 1) {
    multiply_edge<R - 1>(rows, in, sink);
  }
}

constexpr std::int64_t kCacheLine = 64;

/// Walks over the lines of block.next, a share of them before every tile.
class NextSource {
 public:
  explicit NextSource(const GemmBlock& block)
      : block_(block), row_(static_cast<const char*>(block.next)) {
    const std::int64_t tiles = (block.rows + kTileRows - 1) / kTileRows;
    const std::int64_t lines =
        block.next_rows * ((block.next_row_bytes + kCacheLine - 1) / kCacheLine);
    lines_per_tile_ = (lines + tiles - 1) / tiles;
  }
  void prefetch_share() {
    for (std::int64_t i = 0; i < lines_per_tile_ && rows_done_ < block_.next_rows; ++i) {
      __builtin_prefetch(row_ + offset_, 0, 2);
      offset_ += kCacheLine;
      if (offset_ >= block_.next_row_bytes) {
        offset_ = 0;
        row_ += block_.next_row_stride;
        ++rows_done_;
      }
    }
  }

 private:
  const GemmBlock& block_;
  const char* row_;
  std::int64_t lines_per_tile_;
  std::int64_t offset_ = 0, rows_done_ = 0;
};

/// Prefetches the lines of a tile of c or pre, `rows` of the block's from `row` on.
void prefetch_tile(const GemmBlock& block, const void* data, DType type, std::int64_t ld,
                   std::int64_t row, std::int64_t rows) {
  const std::int64_t size = type == DType::kF32 ? 4 : 2;
  const char* p = static_cast<const char*>(data) + ((block.row + row) * ld + block.col) * size;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < block.cols * size; j += kCacheLine) {
      __builtin_prefetch(p + i * ld * size + j, 1);
    }
  }
}

/// How the sums of a block's whole tiles leave the registers.
enum class Route { kTile, kStore, kAdd, kStoreBias, kAddBias };

Route route_of(const GemmBlock& block, const GemmOutput& out) {
  const bool add = !block.first || out.beta == 1.0f;
  const bool bias = block.last && out.bias != nullptr;
  if (block.cols != kTileCols || out.c_type != DType::kF32 ||
      (block.first && out.beta != 0.0f && out.beta != 1.0f) ||
      (block.last && out.epilogue != GemmEpilogue::kNone) ||
      (bias && out.bias_type != DType::kF32)) {
    return Route::kTile;
  }
  if (bias) return add ? Route::kAddBias : Route::kStoreBias;
  return add ? Route::kAdd : Route::kStore;
}

void multiply(const GemmBlock& block, const GemmOutput& out) {
  const Route route = route_of(block, out);
  const auto* bias = static_cast<const float*>(out.bias);  // read by routes that know its type
  if (route == Route::kStoreBias || route == Route::kAddBias) bias += block.col;
  const bool uses_pre = block.last && out.epilogue != GemmEpilogue::kNone && out.pre != nullptr;
  const bool packed = block.a_ld == 0;
  TileInput in = {nullptr, packed ? 1 : block.a_ld, packed ? kTileRows : 1,
                  block.b, block.b_stride,          block.depth};
  NextSource next(block);
  Tile tile;
  for (std::int64_t row = 0; row < block.rows; row += kTileRows) {
    const std::int64_t rows = block.rows - row < kTileRows ? block.rows - row : kTileRows;
    next.prefetch_share();
    // Otherwise the loads and stores at the end of the tile wait for these lines.
    prefetch_tile(block, out.c, out.c_type, out.ld, row, rows);
    if (uses_pre) prefetch_tile(block, out.pre, out.pre_type, out.ld, row, rows);
    in.a = block.a + row * (packed ? block.depth : block.a_ld);
    if (rows < kTileRows) {
      multiply_edge(rows, in, ToTile{tile});
      store_tile(tile, block, out, row, rows);
      continue;
    }
    const auto run = [&](const auto& sink) { multiply_tile<kTileRows>(in, sink); };
    const auto c = [&] {  // for the routes to an f32 output
      return static_cast<float*>(out.c) + (block.row + row) * out.ld + block.col;
    };
    switch (route) {
      case Route::kTile:
        run(ToTile{tile});
        store_tile(tile, block, out, row, rows);
        break;
      case Route::kStore:
        run(ToOutput<false, false>{c(), out.ld, out.alpha, nullptr});
        break;
      case Route::kAdd:
        run(ToOutput<true, false>{c(), out.ld, out.alpha, nullptr});
        break;
      case Route::kStoreBias:
        run(ToOutput<false, true>{c(), out.ld, out.alpha, bias});
        break;
      case Route::kAddBias:
        run(ToOutput<true, true>{c(), out.ld, out.alpha, bias});
        break;
    }
  }
}

template <int P>
void pack(float* dst, const GemmOperand& x, std::int64_t w0, std::int64_t width, std::int64_t d0,
          std::int64_t depth) {
  const std::int64_t start = x.depth_contiguous ? w0 * x.ld + d0 : d0 * x.ld + w0;
  if (x.dtype == DType::kF32) {
    pack_panel<P>(dst, static_cast<const float*>(x.data) + start, x.ld, x.depth_contiguous, width,
                  depth);
  } else {
    pack_panel<P>(dst, static_cast<const bf16*>(x.data) + start, x.ld, x.depth_contiguous, width,
                  depth);
  }
}

constexpr int kDots = 4;  ///< rows and columns whose dot products run side by side

/// Puts into lane j·kWidth/N of v[0] the sum of the lanes of v[j], for all N vectors at once.
/// Halves are folded onto each other, as in sum().
template <int N, int S = kWidth / 2>
inline void sum_each(VecF* v) {
  if constexpr (N > 1) {
#pragma GCC unroll 4
    for (int i = 0; i < N / 2; ++i) {
      exchange<kWidth, S>(v[i], v[i + N / 2], std::make_integer_sequence<int, kWidth>());
      v[i] += v[i + N / 2];
    }
    if constexpr (S > 1) sum_each<N / 2, S / 2>(v);
  } else {
    VecF low = v[0], high = v[0];
    exchange<kWidth, S>(low, high, std::make_integer_sequence<int, kWidth>());
    v[0] = low + high;
    if constexpr (S > 1) sum_each<1, S / 2>(v);
  }
}

/// sums[i·kTileCols + j] = dot product of row i of a and row j of b, i < R, j < N.
template <int R, int N, class Ta, class Tb>
void dots(float* sums, const Ta* a, std::int64_t a_ld, const Tb* b, std::int64_t b_ld,
          std::int64_t depth) {
  VecF v[R][N] = {};
  std::int64_t d = 0;
  const auto step = [&](auto&& load_a, auto&& load_b) __attribute__((always_inline)) {
    VecF column[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      column[j] = load_b(b + j * b_ld + d);
      __builtin_prefetch(b + (N + j) * b_ld + d, 0, 2);  // of the next call
    }
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      const VecF row = load_a(a + i * a_ld + d);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) v[i][j] += row * column[j];
    }
  };
  const auto whole = [](auto* p) __attribute__((always_inline)) {
    return load(p);
  };
  for (; d + kWidth <= depth; d += kWidth) step(whole, whole);
  if (d < depth) {
    const auto part = [&](auto* p) __attribute__((always_inline)) {
      return load_partial(p, depth - d);
    };
    step(part, part);
  }
  for (int i = 0; i < R; ++i) {
    sum_each<N>(v[i]);
    for (int j = 0; j < N; ++j) sums[i * kTileCols + j] = v[i][0][j * (kWidth / N)];
  }
}

/// `dots` for up to kDots rows of a.
template <int N, class Ta, class Tb>
void dots_of_rows(std::int64_t rows, float* sums, const Ta* a, std::int64_t a_ld, const Tb* b,
                  std::int64_t b_ld, std::int64_t depth) {
  switch (rows) {
    case 1:
      return dots<1, N>(sums, a, a_ld, b, b_ld, depth);
    case 2:
      return dots<2, N>(sums, a, a_ld, b, b_ld, depth);
    case 3:
      return dots<3, N>(sums, a, a_ld, b, b_ld, depth);
    default:
      return dots<4, N>(sums, a, a_ld, b, b_ld, depth);
  }
}

template <class Ta, class Tb>
void few_rows(const GemmOperand& a, const GemmOperand& b, std::int64_t rows, std::int64_t col,
              std::int64_t cols, std::int64_t depth, const GemmOutput& out) {
  static_assert(kDots <= kTileRows);
  Tile tile;
  const auto* a_data = static_cast<const Ta*>(a.data);
  const auto* b_data = static_cast<const Tb*>(b.data);
  const std::int64_t end = col + cols;
  for (std::int64_t c = col; c < end; c += kTileCols) {
    const std::int64_t width = end - c < kTileCols ? end - c : kTileCols;
    for (std::int64_t r = 0; r < rows; r += kDots) {
      const std::int64_t height = rows - r < kDots ? rows - r : kDots;
      const Ta* a_rows = a_data + r * a.ld;
      std::int64_t j = 0;
      for (; j + kDots <= width; j += kDots) {
        dots_of_rows<kDots>(height, &tile.sums[0][j], a_rows, a.ld, b_data + (c + j) * b.ld, b.ld,
                            depth);
      }
      for (; j < width; ++j) {
        dots_of_rows<1>(height, &tile.sums[0][j], a_rows, a.ld, b_data + (c + j) * b.ld, b.ld,
                        depth);
      }
      const GemmBlock block = {nullptr, 0,     nullptr, 0, depth, r,   height,
                               c,       width, nullptr, 0, true,  true};
      store_tile(tile, block, out, 0, height);
    }
  }
}

void multiply_few_rows(const GemmOperand& a, const GemmOperand& b, std::int64_t rows,
                       std::int64_t col, std::int64_t cols, std::int64_t depth,
                       const GemmOutput& out) {
  if (a.dtype == DType::kF32) {
    b.dtype == DType::kF32 ? few_rows<float, float>(a, b, rows, col, cols, depth, out)
                           : few_rows<float, bf16>(a, b, rows, col, cols, depth, out);
  } else {
    b.dtype == DType::kF32 ? few_rows<bf16, float>(a, b, rows, col, cols, depth, out)
                           : few_rows<bf16, bf16>(a, b, rows, col, cols, depth, out);
  }
}

/// Rows are added in groups of kSumRows whose sums are then added, to keep rounding small.
void column_sums(void* sums, DType sums_type, const void* x, DType x_type, std::int64_t ld,
                 std::int64_t rows, std::int64_t cols, bool accumulate) {
  constexpr std::int64_t kSumRows = 64;
  for (std::int64_t j = 0; j < cols; j += kWidth) {
    const std::int64_t n = cols - j < kWidth ? cols - j : kWidth;
    VecF total = accumulate ? load_as(sums, sums_type, j, n) : VecF{};
    for (std::int64_t i0 = 0; i0 < rows; i0 += kSumRows) {
      const std::int64_t end = rows - i0 < kSumRows ? rows : i0 + kSumRows;
      VecF group = {};
      for (std::int64_t i = i0; i < end; ++i) group += load_as(x, x_type, i * ld + j, n);
      total += group;
    }
    store_as(sums, sums_type, j, total, n);
  }
}

}  // namespace

extern const GemmKernels kGemmKernels;
const GemmKernels kGemmKernels = {kTileRows, kTileCols,         pack<kTileRows>, pack<kTileCols>,
                                  multiply,  multiply_few_rows, column_sums};

}  // namespace llmc::cpu::LLMC_ISA
