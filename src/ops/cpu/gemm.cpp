// The matrix product, in the manner of Goto and van de Geijn ("Anatomy of high-performance matrix
// multiplication", 2008), for outputs with few rows and weights that are read once.
//
// The innermost loop (kernels/gemm_kernels.cpp) keeps a tile of c, 8 × 48 with AVX-512, in
// registers and adds to it one column of a panel of a (8 values) times one row of a strip of b (48
// values) for each of the summed indices, the depth. Around it, everything serves to have those
// values at hand, in this order and close by:
//
//             strip                  depth is cut into blocks of at most 384;
//              48                    a: panels of 8 rows, packed one after the other, so that 256
//            ┌─────┐                    rows over one depth block (384 KiB) fill part of the L2
//            │  b  │ depth              cache; packed by all threads, before
//            └─────┘                 b: one strip over one depth block (72 KiB), packed by the
//   depth                               thread that uses it, just before it does
//   ┌─────┐  ┌─────┐
//   │  a  │  │  c  │ 8 panel         The strip then meets one panel of a after the other. Meanwhile
//   └─────┘  └─────┘                 the next strip's source is prefetched: weights come from
//                                    memory, and this hides it.
//
// Between depth blocks the sums of a tile wait in c, or in fp32 scratch where c is bf16. A task is
// a group of strips times a part of the packed rows; groups are taken through all depth blocks
// before the next, so that waiting sums stay in cache. Threads take tasks as they become free.
// Whoever takes it, an element is summed over the same depth blocks in the same order, so its bits
// do not depend on the threads.
//
// Few rows (decoding) leave nothing to reuse: then b is read in place, once, as fast as memory
// gives it.

#include "ops/cpu/gemm.h"

#include <algorithm>
#include <cstdint>

#include "core/cpu/parallel.h"

namespace llmc::cpu {
namespace {

constexpr std::int64_t kFewRows = 16;          ///< up to this many rows, b is read in place
constexpr std::int64_t kFewRowsCols = 64;      ///< columns of a task of such a product
constexpr std::int64_t kSerialWork = 1 << 16;  ///< m·n·k up to which one thread is faster

constexpr std::int64_t kDepthBlock = 384;    ///< longest depth block
constexpr std::int64_t kRowBlock = 256;      ///< rows of a that stay in the L2 cache
constexpr std::int64_t kRowsShared = 2048;   ///< most rows of a packed at once for all threads
constexpr std::int64_t kGroupCols = 192;     ///< columns of a group of strips
constexpr std::int64_t kOwnGroupCols = 768;  ///< the same where each task packs a for itself
constexpr std::int64_t kTasksPerThread = 4;  ///< at least, where there is enough to do
constexpr std::int64_t kPanelsPerItem = 8;   ///< of a, packed by one thread at a time

// The workspace of a thread, in floats: packed strips of b, waiting sums, packed rows of a. Rows
// are whole panels, of at most kMostTileRows.
constexpr std::int64_t kMostTileRows = 16;
// A task that packs rows of a for itself has a single pass over them, and so one strip at a time.
constexpr std::int64_t kFloatsOfB = kGroupCols * kDepthBlock;
constexpr std::int64_t kFloatsOfSums = std::max((kRowsShared + kMostTileRows) * kGroupCols,
                                                (kRowBlock + kMostTileRows) * kOwnGroupCols);
constexpr std::int64_t kFloatsOfA = (kRowBlock + kMostTileRows) * kDepthBlock;
static_assert((kFloatsOfB + kFloatsOfSums + kFloatsOfA) * 4 <=
              static_cast<std::int64_t>(kThreadWorkspaceBytes));
constexpr std::int64_t kFloatsShared = static_cast<std::int64_t>(kSharedWorkspaceBytes / 4);

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
  /// Piece i of those of `length` that it is cut into.
  Range piece(std::int64_t i, std::int64_t length) const {
    return {begin + i * length, std::min(end, begin + (i + 1) * length)};
  }
};

/// One product and how it is cut. The cuts along the depth follow from k alone; the others change
/// no element's sum.
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
        threads_(m * n * std::max<std::int64_t>(1, k) <= kSerialWork ? 1 : stream.threads),
        depth_block_(even_block(k, kDepthBlock, 16)),
        depth_blocks_(std::max<std::int64_t>(1, ceil_div(k, depth_block_))),
        strips_(ceil_div(n, kernels_.tile_cols)) {
    const std::int64_t rows_that_fit = kFloatsShared / (depth_blocks_ * depth_block_) - tile_rows();
    shares_a_ = rows_that_fit >= std::min(m, kRowBlock);
    rows_packed_ =
        even_block(m, shares_a_ ? std::min(rows_that_fit, kRowsShared) : kRowBlock, tile_rows());
    group_strips_ =
        shares_a_ ? std::clamp<std::int64_t>(strips_ / (kTasksPerThread * threads_), 1,
                                             kGroupCols / tile_cols())
                  : std::clamp<std::int64_t>(strips_ / threads_, 1, kOwnGroupCols / tile_cols());
    groups_ = ceil_div(strips_, group_strips_);
    // Too few groups to go round: rows are shared out too.
    const std::int64_t row_parts = threads_ == 1 ? 1 : ceil_div(2 * threads_, groups_);
    rows_of_task_ = even_block(rows_packed_, ceil_div(rows_packed_, row_parts), tile_rows());
  }

  void run() const {
    if (!shares_a_) return multiply_rows({0, m_});
    for (std::int64_t row = 0; row < m_; row += rows_packed_) {
      const Range rows = {row, std::min(m_, row + rows_packed_)};
      pack_shared(rows);
      multiply_rows(rows);
    }
  }

 private:
  std::int64_t tile_rows() const { return kernels_.tile_rows; }
  std::int64_t tile_cols() const { return kernels_.tile_cols; }
  std::int64_t panels_of(const Range& rows) const { return ceil_div(rows.size(), tile_rows()); }
  Range depth_of(std::int64_t block) const { return Range{0, k_}.piece(block, depth_block_); }

  /// fn(item, thread) for every item, on the threads that this product is worth.
  template <class Fn>
  void for_items(std::int64_t count, const Fn& fn) const {
    if (threads_ > 1) return parallel_items(stream_, count, fn);
    for (std::int64_t item = 0; item < count; ++item) fn(item, 0);
  }

  /// Where rows that are packed from `rows.begin` on have their panel `panel` of a depth block.
  float* shared_panel(const Range& rows, std::int64_t panel, std::int64_t block) const {
    return static_cast<float*>(stream_.shared_workspace.data()) +
           block * depth_block_ * panels_of(rows) * tile_rows() +
           panel * tile_rows() * depth_of(block).size();
  }

  /// Packs the panels of some rows of a, one after the other.
  void pack_rows(float* to, const Range& rows, const Range& depth) const {
    for (std::int64_t row = rows.begin; row < rows.end; row += tile_rows()) {
      kernels_.pack_a(to, a_, row, std::min(tile_rows(), rows.end - row), depth.begin,
                      depth.size());
      to += tile_rows() * depth.size();
    }
  }

  void pack_shared(const Range& rows) const {
    const std::int64_t rows_at_once = kPanelsPerItem * tile_rows();
    const std::int64_t pieces = ceil_div(rows.size(), rows_at_once);
    for_items(pieces * depth_blocks_, [&](std::int64_t item, int) {
      const std::int64_t block = item / pieces;
      const Range part = rows.piece(item % pieces, rows_at_once);
      pack_rows(shared_panel(rows, (part.begin - rows.begin) / tile_rows(), block), part,
                depth_of(block));
    });
  }

  /// All columns of some rows: those that are packed, or all where tasks pack for themselves.
  void multiply_rows(const Range& rows) const {
    const std::int64_t row_parts = ceil_div(rows.size(), rows_of_task_);
    for_items(groups_ * row_parts, [&](std::int64_t item, int thread) {
      multiply_task(rows, rows.piece(item % row_parts, rows_of_task_), item / row_parts, thread);
    });
  }

  /// A part of the rows times a group of strips, through all of the depth.
  void multiply_task(const Range& packed, const Range& rows, std::int64_t group, int thread) const {
    auto* own_b = static_cast<float*>(stream_.thread_workspace(thread));
    float* own_sums = own_b + kFloatsOfB;
    float* own_a = own_sums + kFloatsOfSums;
    const Range strips = Range{0, strips_}.piece(group, group_strips_);
    const std::int64_t rows_at_once = round_up(kRowBlock, tile_rows());
    const bool one_pass = rows.size() <= rows_at_once;
    for (std::int64_t block = 0; block < depth_blocks_; ++block) {
      const Range depth = depth_of(block);
      if (!shares_a_) pack_rows(own_a, rows, depth);
      for (std::int64_t i = 0; i < ceil_div(rows.size(), rows_at_once); ++i) {
        const Range part = rows.piece(i, rows_at_once);
        for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
          GemmBlock work;
          work.a = shares_a_
                       ? shared_panel(packed, (part.begin - packed.begin) / tile_rows(), block)
                       : own_a;
          work.depth = depth.size();
          work.row = part.begin;
          work.rows = part.size();
          work.col = strip * tile_cols();
          work.cols = std::min(tile_cols(), n_ - work.col);
          work.first = block == 0;
          work.last = block == depth_blocks_ - 1;
          if (out_.c_type == DType::kF32) {
            work.partial = static_cast<float*>(out_.c) + work.row * out_.ld + work.col;
            work.partial_ld = out_.ld;
          } else {
            work.partial_ld = group_strips_ * tile_cols();
            work.partial = own_sums + (part.begin - rows.begin) * work.partial_ld +
                           (strip - strips.begin) * tile_cols();
          }
          // A strip that is used only once is overwritten by the next one, and so stays in cache.
          set_strip(work,
                    own_b + (one_pass ? 0 : (strip - strips.begin) * tile_cols() * depth_block_),
                    depth, i == 0);
          if (i == 0) prefetch_next(work, strips, strip, block);
          kernels_.multiply(work, out_);
        }
      }
    }
  }

  /// Packs a strip of b, unless it is already, or leaves it in place.
  void set_strip(GemmBlock& work, float* packed, const Range& depth, bool is_new) const {
    if (m_ <= kFewRows && work.cols == tile_cols() && b_.dtype == DType::kF32 &&
        !b_.depth_contiguous) {
      work.b = static_cast<const float*>(b_.data) + depth.begin * b_.ld + work.col;
      work.b_stride = b_.ld;
      return;
    }
    if (is_new) kernels_.pack_b(packed, b_, work.col, work.cols, depth.begin, depth.size());
    work.b = packed;
    work.b_stride = tile_cols();
  }

  /// Has the source of the strip that this thread will most likely pack next brought to the cache.
  void prefetch_next(GemmBlock& work, const Range& strips, std::int64_t strip,
                     std::int64_t block) const {
    if (strip + 1 < strips.end) {
      ++strip;
    } else if (block + 1 < depth_blocks_) {
      strip = strips.begin;
      ++block;
    } else {
      strip = strips.begin + threads_ * group_strips_;
      block = 0;
      if (strip >= strips_) return;
    }
    const Range cols = Range{0, n_}.piece(strip, tile_cols());
    const Range depth = depth_of(block);
    const Range& outer = b_.depth_contiguous ? cols : depth;
    const Range& inner = b_.depth_contiguous ? depth : cols;
    const auto element = static_cast<std::int64_t>(size_of(b_.dtype));
    work.next = static_cast<const char*>(b_.data) + element * (outer.begin * b_.ld + inner.begin);
    work.next_rows = outer.size();
    work.next_row_bytes = element * inner.size();
    work.next_row_stride = element * b_.ld;
  }

  const Stream::Impl& stream_;
  const GemmKernels& kernels_;
  const GemmOutput& out_;
  const GemmOperand& a_;
  const GemmOperand& b_;
  const std::int64_t m_, n_, k_;
  const std::int64_t threads_;
  const std::int64_t depth_block_;  ///< length of all depth blocks but the last
  const std::int64_t depth_blocks_;
  const std::int64_t strips_;
  bool shares_a_;             ///< rows of a are packed over the whole depth for all threads;
                              ///< otherwise k is so large that each task packs its own
  std::int64_t rows_packed_;  ///< rows that share a packing
  std::int64_t rows_of_task_;
  std::int64_t group_strips_;  ///< strips of a group
  std::int64_t groups_;
};

}  // namespace

void gemm(const Stream::Impl& stream, const GemmOutput& out, const GemmOperand& a,
          const GemmOperand& b, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m == 0 || n == 0) return;
  if (m > kFewRows || !a.depth_contiguous || !b.depth_contiguous) {
    Product(stream, out, a, b, m, n, k).run();
    return;
  }
  const GemmKernels& kernels = gemm_kernels(stream.isa);
  if (m * n * k <= kSerialWork) {
    kernels.multiply_few_rows(a, b, m, 0, n, k, out);
    return;
  }
  parallel_items(stream, ceil_div(n, kFewRowsCols), [&](std::int64_t item, int) {
    const Range cols = Range{0, n}.piece(item, kFewRowsCols);
    kernels.multiply_few_rows(a, b, m, cols.begin, cols.size(), k, out);
  });
}

}  // namespace llmc::cpu
