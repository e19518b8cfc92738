#pragma once

#include <cstdint>

#include "core/cpu/isa.h"
#include "llmc/core/dtype.h"

namespace llmc::cpu {

/// One input of a product. `w` counts along the output (rows of a, columns of b), `d` along the
/// summed dimension: element (w, d) is at w·ld + d if `depth_contiguous`, else at d·ld + w.
struct GemmOperand {
  const void* data;
  DType dtype;  ///< f32 or bf16
  std::int64_t ld;
  bool depth_contiguous;
};

/// What happens to an element between its sum and its store.
enum class GemmEpilogue {
  kNone,
  kGelu,          ///< pre = v; c = gelu(v as stored)
  kGeluGradient,  ///< c = v · gelu'(pre)
};

/// Where a product goes: c = epilogue(alpha · sum + beta · c + bias), row-major.
struct GemmOutput {
  void* c;
  DType c_type;
  std::int64_t ld;  ///< of c and pre
  float alpha = 1.0f;
  float beta = 0.0f;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  const void* bias = nullptr;  ///< one value per column, or null
  DType bias_type = DType::kF32;
  void* pre = nullptr;           ///< or null for a kGelu that need not keep it
  DType pre_type = DType::kF32;  ///< what kGelu rounds to, kept or not
  void* row_sums = nullptr;      ///< (+)= the sums of the rows of a, not depth_contiguous; or null
  DType row_sums_type = DType::kF32;
  bool accumulate_row_sums = false;
};

/// A block of rows of a times one strip of columns of b, over one block of the summed dimension.
struct GemmBlock {
  const float* a;     ///< packed panels of `tile_rows` rows, each (depth, tile_rows), or rows
  std::int64_t a_ld;  ///< from row to row of a, 0 for panels
  const float* b;     ///< a strip of `tile_cols` columns, (depth, b_stride)
  std::int64_t b_stride;
  std::int64_t depth;
  std::int64_t row, rows;  ///< first row in c, and how many
  std::int64_t col, cols;  ///< first column in c, and how many, at most tile_cols
  /// Element (row, col) of the fp32 sums over the depth blocks before the last one; c itself where
  /// that is f32. Not read in the first block, not written in the last.
  float* partial;
  std::int64_t partial_ld;
  bool first, last;  ///< whether this is the first or last block of the summed dimension
  /// Memory to bring into the L2 cache meanwhile, the next strip's source: rows of bytes.
  const void* next = nullptr;
  std::int64_t next_rows = 0;
  std::int64_t next_row_bytes = 0;
  std::int64_t next_row_stride = 0;
};

/// The inner loops of the matrix product, one table per instruction set.
struct GemmKernels {
  std::int64_t tile_rows;
  std::int64_t tile_cols;

  /// Copies `width` rows of a (columns of b) from w0 on, depth [d0, d0 + depth), as fp32 into a
  /// panel: dst[d·tile + w], zeros from `width` up to tile_rows (tile_cols).
  void (*pack_a)(float* dst, const GemmOperand& a, std::int64_t w0, std::int64_t width,
                 std::int64_t d0, std::int64_t depth);
  void (*pack_b)(float* dst, const GemmOperand& b, std::int64_t w0, std::int64_t width,
                 std::int64_t d0, std::int64_t depth);
  void (*multiply)(const GemmBlock& block, const GemmOutput& out);
  /// Columns [col, col + cols) of the product of few rows, by dot products read straight from a and
  /// b, both depth_contiguous.
  void (*multiply_few_rows)(const GemmOperand& a, const GemmOperand& b, std::int64_t rows,
                            std::int64_t col, std::int64_t cols, std::int64_t depth,
                            const GemmOutput& out);
  /// sums[j] (+)= sum over i < rows of x[i·ld + j], j < cols.
  void (*column_sums)(void* sums, DType sums_type, const void* x, DType x_type, std::int64_t ld,
                      std::int64_t rows, std::int64_t cols, bool accumulate);
};

namespace portable {
extern const GemmKernels kGemmKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const GemmKernels kGemmKernels;
}
namespace avx512 {
extern const GemmKernels kGemmKernels;
}
#endif

inline const GemmKernels& gemm_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::kGemmKernels;
  if (isa == Isa::kAvx2) return avx2::kGemmKernels;
#endif
  (void)isa;
  return portable::kGemmKernels;
}

}  // namespace llmc::cpu
