#include "ops/cuda/kernel.cuh"
#include "ops/cuda/matmul_kernels.h"

namespace llmc::cuda {
namespace {

constexpr int kTile = 64;   // rows and columns of the tile of a block
constexpr int kDepth = 16;  // of a step along k
constexpr int kThreads = 256;
constexpr int kSide = 16;              // threads along each side of the tile
constexpr int kPatch = kTile / kSide;  // rows and columns of a thread, kSide apart

__device__ float read(const void* data, bool is_bf16, std::int64_t i) {
  return is_bf16 ? to_float(static_cast<const __nv_bfloat16*>(data)[i])
                 : static_cast<const float*>(data)[i];
}

/// Loads the kTile × kDepth part of a matrix that begins at (line, depth): element [d][l] is that
/// of line + l and depth + d, zero outside. Neighbouring threads read neighbouring elements.
/// lines_contiguous: the matrix is stored (depths, lines) instead of (lines, depths).
__device__ void load_tile(float (&tile)[kDepth][kTile + 1], const void* data, bool is_bf16,
                          bool lines_contiguous, std::int64_t line, std::int64_t lines,
                          std::int64_t depth, std::int64_t depths) {
  for (int e = static_cast<int>(threadIdx.x); e < kTile * kDepth; e += kThreads) {
    const int l = lines_contiguous ? e % kTile : e / kDepth;
    const int d = lines_contiguous ? e / kTile : e % kDepth;
    const std::int64_t at_line = line + l, at_depth = depth + d;
    float value = 0.0f;
    if (at_line < lines && at_depth < depths) {
      value = read(data, is_bf16,
                   lines_contiguous ? at_depth * lines + at_line : at_line * depths + at_depth);
    }
    tile[d][l] = value;
  }
}

/// Blocks stride over the tiles of c.
__global__ void __launch_bounds__(kThreads) plain_matmul_kernel(Product p) {
  __shared__ float a[kDepth][kTile + 1];
  __shared__ float b[kDepth][kTile + 1];
  const int row = static_cast<int>(threadIdx.x) / kSide;
  const int column = static_cast<int>(threadIdx.x) % kSide;
  const bool a_bf16 = p.a.dtype == DType::kBF16, b_bf16 = p.b.dtype == DType::kBF16;
  const bool c_bf16 = p.c_type == DType::kBF16, bias_bf16 = p.bias_type == DType::kBF16;
  const std::int64_t across = (p.n + kTile - 1) / kTile;
  const std::int64_t tiles = (p.m + kTile - 1) / kTile * across;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t first_row = tile / across * kTile, first_column = tile % across * kTile;
    float sums[kPatch][kPatch] = {};
    for (std::int64_t depth = 0; depth < p.k; depth += kDepth) {
      load_tile(a, p.a.data, a_bf16, p.a.transposed, first_row, p.m, depth, p.k);
      load_tile(b, p.b.data, b_bf16, !p.b.transposed, first_column, p.n, depth, p.k);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int i = 0; i < kPatch; ++i) {
#pragma unroll
          for (int j = 0; j < kPatch; ++j) {
            sums[i][j] = fmaf(a[d][row + i * kSide], b[d][column + j * kSide], sums[i][j]);
          }
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
#pragma unroll
      for (int j = 0; j < kPatch; ++j) {
        const std::int64_t r = first_row + row + i * kSide, c = first_column + column + j * kSide;
        if (r >= p.m || c >= p.n) continue;
        const std::int64_t at = r * p.n + c;
        float value = p.alpha * sums[i][j];
        if (p.beta != 0.0f) value += p.beta * read(p.c, c_bf16, at);
        if (p.bias != nullptr) value += read(p.bias, bias_bf16, c);
        if (c_bf16) {
          static_cast<__nv_bfloat16*>(p.c)[at] = from_float<__nv_bfloat16>(value);
        } else {
          static_cast<float*>(p.c)[at] = value;
        }
      }
    }
  }
}

}  // namespace

void plain_matmul(Stream::Impl& stream, const Product& product) {
  const std::int64_t tiles = ceil_div(product.m, kTile) * ceil_div(product.n, kTile);
  plain_matmul_kernel<<<grid_of(stream, tiles, 1), kThreads, 0, stream.stream>>>(product);
  check_launch("matmul");
}

}  // namespace llmc::cuda
