#include "ops/cpu/gemm.h"

#include <algorithm>
#include <cstdint>

#include "core/cpu/parallel.h"

namespace llmc::cpu {
namespace {

constexpr std::int64_t kFewRows = 16;          ///< up to this many rows, b is read in place
constexpr std::int64_t kDepthBlock = 384;      ///< longest block of the summed dimension
constexpr std::int64_t kRowBlock = 256;        ///< rows of a that stay in the L2 cache
constexpr std::int64_t kRowsPacked = 2048;     ///< most rows of a packed at once
constexpr std::int64_t kGroupCols = 192;       ///< columns whose partial sums stay in the L2 cache
constexpr std::int64_t kSerialWork = 1 << 16;  ///< products this small run on one thread

// Floats of the workspaces: packed rows of a (shared), packed strips of b and partial sums (each
// thread's own).
constexpr std::int64_t kFloatsOfA = static_cast<std::int64_t>(kSharedWorkspaceBytes / 4);
constexpr std::int64_t kFloatsOfB = static_cast<std::int64_t>(kThreadWorkspaceBytes / 8);
constexpr std::int64_t kFloatsOfSums = kFloatsOfB;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

/// The multiple of `multiple` that cuts `count` into as many, but more even, blocks than `limit`.
std::int64_t even_block(std::int64_t count, std::int64_t limit, std::int64_t multiple) {
  const std::int64_t blocks = std::max<std::int64_t>(1, ceil_div(count, limit));
  return std::max(multiple, round_up(ceil_div(count, blocks), multiple));
}

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
  /// Part i of `parts` nearly equal ones.
  Range part(std::int64_t i, std::int64_t parts) const {
    return {begin + size() * i / parts, begin + size() * (i + 1) / parts};
  }
};

/// One product, cut into blocks. The cuts along k follow from the sizes alone; those along m and n
/// change no element's sum, so they may follow the number of threads.
class Product {
 public:
  Product(const Stream::Impl& stream, const GemmOutput& out, const GemmOperand& a,
          const GemmOperand& b, std::int64_t m, std::int64_t n, std::int64_t k)
      : stream_(stream),
        kernels_(gemm_kernels(stream.isa)),
        out_(out),
        a_(a),
        b_(b),
        m_(m),
        n_(n),
        k_(k),
        depth_block_(even_block(k, kDepthBlock, 16)),
        depth_blocks_(std::max<std::int64_t>(1, ceil_div(k, depth_block_))) {
    const std::int64_t rows_that_fit = kFloatsOfA / std::max<std::int64_t>(1, k) - tile_rows();
    whole_depth_packed_ = rows_that_fit >= std::min(m, kRowBlock);
    const std::int64_t limit =
        whole_depth_packed_ ? std::min(rows_that_fit, kRowsPacked) : kRowBlock;
    rows_packed_ = even_block(m, limit, tile_rows());
    if (whole_depth_packed_) {
      group_strips_ = kGroupCols / tile_cols();
    } else {
      // Each group of strips costs one more packing of a: as wide as the workspaces allow.
      group_strips_ = std::min(kFloatsOfB / (depth_block_ * tile_cols()),
                               kFloatsOfSums / (rows_packed_ * tile_cols()));
    }
  }

  /// The work of one thread of a team.
  void run(int thread, int threads) const {
    const Grid grid = choose_grid(threads);
    const bool idle = thread >= grid.rows * grid.cols;
    const std::int64_t team_row = idle ? 0 : thread / grid.cols;
    const std::int64_t team_col = idle ? 0 : thread % grid.cols;
    const Range strips =
        idle ? Range{0, 0} : Range{0, ceil_div(n_, tile_cols())}.part(team_col, grid.cols);
    // Threads meet at barriers inside a group, so all count as many groups as the busiest one.
    const std::int64_t most_strips = ceil_div(ceil_div(n_, tile_cols()), grid.cols);
    const std::int64_t groups = ceil_div(most_strips, group_strips_);

    for (std::int64_t row = 0; row < m_; row += rows_packed_) {
      const Range packed = {row, std::min(m_, row + rows_packed_)};
      const Range panels = Range{0, ceil_div(packed.size(), tile_rows())}.part(team_row, grid.rows);
      if (whole_depth_packed_) {
        pack_rows(packed, {0, depth_blocks_}, thread, threads);
      }
      for (std::int64_t g = 0; g < groups; ++g) {
        const Range group = {std::min(strips.end, strips.begin + g * group_strips_),
                             std::min(strips.end, strips.begin + (g + 1) * group_strips_)};
        for (std::int64_t block = 0; block < depth_blocks_; ++block) {
          if (!whole_depth_packed_) pack_rows(packed, {block, block + 1}, thread, threads);
          multiply_group(packed, panels, group, block, thread);
        }
      }
    }
  }

 private:
  struct Grid {
    std::int64_t rows, cols;
  };

  std::int64_t tile_rows() const { return kernels_.tile_rows; }
  std::int64_t tile_cols() const { return kernels_.tile_cols; }
  std::int64_t depth_of(std::int64_t block) const {
    return std::min(k_, (block + 1) * depth_block_) - block * depth_block_;
  }

  /// How a team shares the output: the grid whose busiest thread has the least to do, where packing
  /// a strip of b costs about as much as multiplying eight rows by it.
  Grid choose_grid(std::int64_t threads) const {
    constexpr std::int64_t kPackingRows = 8;
    Grid best = {1, 1};
    std::int64_t best_cost = 0;
    for (std::int64_t rows = 1; rows <= threads; ++rows) {
      const std::int64_t cols = threads / rows;
      const std::int64_t panels = ceil_div(std::min(m_, rows_packed_), tile_rows());
      const std::int64_t cost = ceil_div(ceil_div(n_, tile_cols()), cols) *
                                (ceil_div(panels, rows) * tile_rows() + kPackingRows);
      if (rows == 1 || cost < best_cost) {
        best = {rows, cols};
        best_cost = cost;
      }
    }
    return best;
  }

  float* packed_a() const { return static_cast<float*>(stream_.shared_workspace.data()); }
  /// Where a panel of packed rows starts, for one depth block.
  float* panel_of(const Range& packed, std::int64_t panel, std::int64_t block) const {
    const std::int64_t rows = round_up(packed.size(), tile_rows());
    const std::int64_t before = whole_depth_packed_ ? block * depth_block_ * rows : 0;
    return packed_a() + before + panel * tile_rows() * depth_of(block);
  }

  /// Packs rows of a for some depth blocks, shared by the team.
  void pack_rows(const Range& packed, const Range& blocks, int thread, int threads) const {
    if (threads > 1) team_barrier();  // until everyone is done with what was packed before
    const std::int64_t panels = ceil_div(packed.size(), tile_rows());
    const Range mine = Range{0, panels * blocks.size()}.part(thread, threads);
    for (std::int64_t i = mine.begin; i < mine.end; ++i) {
      const std::int64_t block = blocks.begin + i / panels;
      const std::int64_t panel = i % panels;
      const std::int64_t row = packed.begin + panel * tile_rows();
      kernels_.pack_a(panel_of(packed, panel, block), a_, row,
                      std::min(tile_rows(), packed.end - row), block * depth_block_,
                      depth_of(block));
    }
    if (threads > 1) team_barrier();
  }

  /// Multiplies some panels of the packed rows with a group of strips, over one depth block.
  void multiply_group(const Range& packed, const Range& panels, const Range& group,
                      std::int64_t block, int thread) const {
    auto* workspace = static_cast<float*>(stream_.thread_workspace(thread));
    const std::int64_t depth = depth_of(block);
    const std::int64_t strip_size = depth * tile_cols();
    const std::int64_t panels_at_once = ceil_div(kRowBlock, tile_rows());
    const bool one_pass = panels.size() <= panels_at_once;
    for (std::int64_t panel = panels.begin; panel < panels.end; panel += panels_at_once) {
      const std::int64_t row = packed.begin + panel * tile_rows();
      const std::int64_t end = std::min(
          packed.end, packed.begin + std::min(panels.end, panel + panels_at_once) * tile_rows());
      for (std::int64_t strip = group.begin; strip < group.end; ++strip) {
        GemmBlock work;
        work.a = panel_of(packed, panel, block);
        work.depth = depth;
        work.row = row;
        work.rows = end - row;
        work.col = strip * tile_cols();
        work.cols = std::min(tile_cols(), n_ - work.col);
        work.first = block == 0;
        work.last = block == depth_blocks_ - 1;
        // A strip that a single pass uses is overwritten by the next one, and so stays in cache.
        float* strip_of_b = workspace + (one_pass ? 0 : (strip - group.begin) * strip_size);
        if (reads_b_in_place(work.cols)) {
          work.b = static_cast<const float*>(b_.data) + block * depth_block_ * b_.ld + work.col;
          work.b_stride = b_.ld;
        } else {
          work.b = strip_of_b;
          work.b_stride = tile_cols();
          if (panel == panels.begin) {
            kernels_.pack_b(strip_of_b, b_, work.col, work.cols, block * depth_block_, depth);
          }
        }
        if (out_.c_type == DType::kF32) {
          work.partial = static_cast<float*>(out_.c) + row * out_.ld + work.col;
          work.partial_ld = out_.ld;
        } else {
          work.partial_ld = group_strips_ * tile_cols();
          work.partial = workspace + kFloatsOfB +
                         (row - packed.begin - panels.begin * tile_rows()) * work.partial_ld +
                         (strip - group.begin) * tile_cols();
        }
        if (panel == panels.begin) {
          if (strip + 1 < group.end) {
            set_next(work, strip + 1, block);
          } else if (block + 1 < depth_blocks_) {
            set_next(work, group.begin, block + 1);
          } else if (strip + 1 < ceil_div(n_, tile_cols())) {
            set_next(work, strip + 1, 0);
          }
        }
        kernels_.multiply(work, out_);
      }
    }
  }

  void set_next(GemmBlock& work, std::int64_t strip, std::int64_t block) const {
    const std::int64_t size = static_cast<std::int64_t>(size_of(b_.dtype));
    const std::int64_t width = std::min(tile_cols(), n_ - strip * tile_cols());
    const std::int64_t w = strip * tile_cols(), d = block * depth_block_;
    work.next = static_cast<const char*>(b_.data) +
                size * (b_.depth_contiguous ? w * b_.ld + d : d * b_.ld + w);
    work.next_rows = b_.depth_contiguous ? width : depth_of(block);
    work.next_row_bytes = size * (b_.depth_contiguous ? depth_of(block) : width);
    work.next_row_stride = size * b_.ld;
  }

  /// Packing pays where a strip is used by many rows.
  bool reads_b_in_place(std::int64_t cols) const {
    return m_ <= kFewRows && cols == tile_cols() && b_.dtype == DType::kF32 && !b_.depth_contiguous;
  }

  const Stream::Impl& stream_;
  const GemmKernels& kernels_;
  const GemmOutput& out_;
  const GemmOperand& a_;
  const GemmOperand& b_;
  std::int64_t m_, n_, k_;
  std::int64_t depth_block_;  ///< of k, but for the last one
  std::int64_t depth_blocks_;
  bool whole_depth_packed_;    ///< packed rows of a hold all of k, else one block of it
  std::int64_t rows_packed_;   ///< rows of a packed at once
  std::int64_t group_strips_;  ///< strips of b taken through all of k before the next ones
};

}  // namespace

void gemm(const Stream::Impl& stream, const GemmOutput& out, const GemmOperand& a,
          const GemmOperand& b, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m == 0 || n == 0) return;
  if (m <= kFewRows && a.depth_contiguous && b.depth_contiguous) {
    const GemmKernels& kernels = gemm_kernels(stream.isa);
    const std::int64_t serial =
        std::max<std::int64_t>(1, kSerialWork / std::max<std::int64_t>(1, m * k));
    parallel_for(
        stream, n,
        [&](std::int64_t begin, std::int64_t end) {
          kernels.multiply_few_rows(a, b, m, begin, end - begin, k, out);
        },
        serial);
    return;
  }
  const Product product(stream, out, a, b, m, n, k);
  if (stream.threads == 1 || m * n * std::max<std::int64_t>(1, k) <= kSerialWork) {
    product.run(0, 1);
  } else {
    parallel_region(stream, [&](int thread, int threads) { product.run(thread, threads); });
  }
}

}  // namespace llmc::cpu
