// The matrix product, in the manner of Goto and van de Geijn ("Anatomy of high-performance matrix
// multiplication", 2008).
//
// The innermost loop (kernels/gemm_kernels.cpp) keeps a tile of c, 8 × 48 with AVX-512, in
// registers and adds to it one column of a panel of a (8 values) times one row of a strip of b (48
// values) for each of the summed indices, the depth. Around it, everything serves to have those
// values at hand, in this order and close by:
//
//             strip                  The depth is cut into blocks of at most 384. Panels and strips
//              48                    are packed: their values of one depth lie together, the depths
//            ┌─────┐                 of a block one after the other.
//            │  b  │ depth           A strip over one depth block (72 KiB) meets the panels of up
//            to └─────┘                 256 rows (384 KiB) one after the other; both stay in the L2
//   depth                            cache. Meanwhile the source of what this thread will pack next
//   ┌─────┐  ┌─────┐                 is prefetched: weights come from memory, and this hides it.
//   │  a  │  │  c  │ 8 panel         Between depth blocks, the sums of a tile wait in c, or in fp32
//   └─────┘  └─────┘                 scratch where c is bf16.
//
// A task is a stretch of rows times a stretch of columns, through all depth blocks; threads take
// tasks as they become free. The smaller input is packed once, for all threads: each piece of it by
// whoever needs it first, so that nobody waits at a barrier. The larger one is packed by the tasks.
// With 256 tokens that means: forward and input gradient share the activations and stream the
// weights; the weight gradient shares the layer's input and streams the output gradient.
//
// What is fp32 and lies well already is not packed but read in place: rows of a along the depth, of
// which the inner loop broadcasts single values, and rows of b across it, whole cache lines that do
// not push each other out of the cache.
//
// Whoever computes an element, it is summed over the same depth blocks in the same order, so its
// bits do not depend on the threads.
//
// Few rows (decoding) leave nothing to reuse: then b is read in place, once, as fast as memory
// gives it.

#include "ops/cpu/gemm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "core/cpu/parallel.h"

namespace llmc::cpu {
namespace {

constexpr std::int64_t kFewRows = 16;          ///< up to this many rows, b is read in place
constexpr std::int64_t kFewRowsCols = 64;      ///< columns of a task of such a product
constexpr std::int64_t kSerialWork = 1 << 16;  ///< m·n·k up to which one thread is faster
constexpr std::int64_t kFloatsOfLine = 16;     ///< a cache line
/// Rows a multiple of this many floats apart share few sets of the cache: a strip does not fit.
constexpr std::int64_t kConflictingLd = 1024;

constexpr std::int64_t kDepthBlock = 384;    ///< longest depth block
constexpr std::int64_t kRowBlock = 256;      ///< rows that a strip meets while it is in cache
constexpr std::int64_t kTasksPerThread = 4;  ///< about, where there is enough to do
// The longest stretches of a task, by which input is shared.
constexpr std::int64_t kRowsSharedA = 2048, kColsSharedA = 192;
constexpr std::int64_t kLeastRowsSharedB = 64;
constexpr std::int64_t kColsSharedNone = 768;

// The workspace of a thread, in floats: packed strips of b, packed rows of a, waiting sums. Rows
// are whole panels, of at most kMostTileRows.
constexpr std::int64_t kMostTileRows = 16;
constexpr std::int64_t kFloatsOfB = kColsSharedA * kDepthBlock;
constexpr std::int64_t kFloatsOfA = (kRowBlock + kMostTileRows) * kDepthBlock;
constexpr std::int64_t kFloatsOfSums = (kRowsSharedA + kMostTileRows) * kColsSharedA;
static_assert((kRowBlock + kMostTileRows) * kColsSharedNone <= kFloatsOfSums);
static_assert((kFloatsOfB + kFloatsOfA + kFloatsOfSums) * 4 <=
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

/// Whether a strip in place takes no more of the cache than a packed one.
bool cached_in_place(std::int64_t tile_cols, std::int64_t ld) {
  return tile_cols % kFloatsOfLine == 0 && ld % kFloatsOfLine == 0 && ld % kConflictingLd != 0;
}

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
  /// Piece i of those of `length` that it is cut into.
  Range piece(std::int64_t i, std::int64_t length) const {
    return {begin + i * length, std::min(end, begin + (i + 1) * length)};
  }
};

/// One input, packed over all of the depth for all threads: units (panels of a or strips of b) of
/// `width` rows, each depth block after the other. Pieces of it are packed on demand.
class SharedInput {
 public:
  using Pack = void (*)(float* dst, const GemmOperand& x, std::int64_t w0, std::int64_t rows,
                        std::int64_t d0, std::int64_t depth);

  static constexpr std::int64_t kMostDepthBlocks = 256;

  /// x: `rows` × k; packed into `memory`, with at least `least_units` a piece.
  SharedInput(float* memory, const GemmOperand& x, Pack pack, std::int64_t rows, std::int64_t width,
              std::int64_t k, std::int64_t depth_block, std::int64_t depth_blocks,
              std::int64_t least_units)
      : memory_(memory),
        x_(x),
        pack_(pack),
        rows_(rows),
        width_(width),
        k_(k),
        depth_block_(depth_block),
        units_(ceil_div(rows, width)),
        units_of_piece_(
            std::max(least_units, ceil_div(units_ * depth_blocks, kMostPieces - kMostDepthBlocks))),
        pieces_(ceil_div(units_, units_of_piece_)) {}

  /// Some units of a depth block, packed by the time this returns.
  const float* get(const Range& units, std::int64_t block) {
    const Range pieces = {units.begin / units_of_piece_, ceil_div(units.end, units_of_piece_)};
    for (std::int64_t piece = pieces.begin; piece < pieces.end; ++piece) {
      auto& state = states_[static_cast<std::size_t>(block * pieces_ + piece)];
      unsigned char expected = kRaw;
      if (state.load(std::memory_order_relaxed) == kRaw &&
          state.compare_exchange_strong(expected, kBusy, std::memory_order_relaxed)) {
        pack_piece(piece, block);
        state.store(kPacked, std::memory_order_release);
      }
    }
    for (std::int64_t piece = pieces.begin; piece < pieces.end; ++piece) {
      const auto& state = states_[static_cast<std::size_t>(block * pieces_ + piece)];
      while (state.load(std::memory_order_acquire) != kPacked) std::this_thread::yield();
    }
    return unit(units.begin, block);
  }

 private:
  static constexpr std::int64_t kMostPieces = 2 * kMostDepthBlocks;  // one a block, at least
  enum : unsigned char { kRaw, kBusy, kPacked };

  float* unit(std::int64_t i, std::int64_t block) const {
    const std::int64_t depth = std::min(k_ - block * depth_block_, depth_block_);
    return memory_ + (block * depth_block_ * units_ + i * depth) * width_;
  }
  void pack_piece(std::int64_t piece, std::int64_t block) const {
    const Range units = Range{0, units_}.piece(piece, units_of_piece_);
    const Range depth = Range{0, k_}.piece(block, depth_block_);
    for (std::int64_t i = units.begin; i < units.end; ++i) {
      pack_(unit(i, block), x_, i * width_, std::min(width_, rows_ - i * width_), depth.begin,
            depth.size());
    }
  }

  float* memory_;
  const GemmOperand& x_;
  Pack pack_;
  std::int64_t rows_, width_, k_, depth_block_, units_, units_of_piece_, pieces_;
  std::array<std::atomic<unsigned char>, kMostPieces> states_{};
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
        a_in_place_(a.dtype == DType::kF32 && a.depth_contiguous),
        b_in_place_(b.dtype == DType::kF32 && !b.depth_contiguous &&
                    (m <= kFewRows || cached_in_place(kernels_.tile_cols, b.ld))),
        strips_(ceil_div(n, kernels_.tile_cols)) {
    const bool few_blocks = depth_blocks_ <= SharedInput::kMostDepthBlocks;
    const bool a_fits = few_blocks && round_up(m, tile_rows()) * k <= kFloatsShared;
    const bool b_fits = few_blocks && strips_ * tile_cols() * k <= kFloatsShared;
    const std::int64_t tasks = threads_ == 1 ? 1 : kTasksPerThread * threads_;
    if (a_fits && (m <= n || !b_fits)) {
      shared_ = Shared::kA;
      strips_of_task_ = std::clamp<std::int64_t>(strips_ / tasks, 1, kColsSharedA / tile_cols());
      rows_of_task_ = cut_rows(kRowsSharedA, ceil_div(tasks, column_tasks()));
    } else if (b_fits) {
      shared_ = Shared::kB;
      const std::int64_t most_rows = ceil_div(m, kLeastRowsSharedB);
      const std::int64_t stretches = std::max(ceil_div(m, kRowBlock), std::min(tasks, most_rows));
      // As many for each thread.
      rows_of_task_ =
          cut_rows(kRowBlock, stretches > threads_ ? round_up(stretches, threads_) : stretches);
      const std::int64_t parts = std::min(strips_, ceil_div(tasks, row_tasks()));
      const std::int64_t room = kFloatsOfSums / (rows_of_task_ * tile_cols());
      strips_of_task_ = std::min(ceil_div(strips_, parts), room);
    } else {
      shared_ = Shared::kNone;
      rows_of_task_ = cut_rows(kRowBlock, 1);
      strips_of_task_ =
          std::clamp<std::int64_t>(strips_ / threads_, 1, kColsSharedNone / tile_cols());
    }
  }

  void run() const {
    auto* memory = static_cast<float*>(stream_.shared_workspace.data());
    const bool a = shared_ == Shared::kA;
    SharedInput shared(memory, a ? a_ : b_, a ? kernels_.pack_a : kernels_.pack_b, a ? m_ : n_,
                       a ? tile_rows() : tile_cols(), k_, depth_block_, depth_blocks_,
                       a ? kPanelsOfPiece : 1);
    const std::int64_t tasks = column_tasks() * row_tasks();
    const auto task = [&](std::int64_t i, int thread) { multiply_task(shared, i, thread); };
    if (threads_ > 1) return parallel_items(stream_, tasks, task);
    for (std::int64_t i = 0; i < tasks; ++i) task(i, 0);
  }

 private:
  enum class Shared { kA, kB, kNone };
  static constexpr std::int64_t kPanelsOfPiece = 8;

  std::int64_t tile_rows() const { return kernels_.tile_rows; }
  std::int64_t tile_cols() const { return kernels_.tile_cols; }
  std::int64_t column_tasks() const { return ceil_div(strips_, strips_of_task_); }
  std::int64_t row_tasks() const { return ceil_div(m_, rows_of_task_); }
  Range depth_of(std::int64_t block) const { return Range{0, k_}.piece(block, depth_block_); }
  Range columns_of(std::int64_t strip) const { return Range{0, n_}.piece(strip, tile_cols()); }

  /// Even stretches of rows, at most `most` each, and as many as `parts` if that is more.
  std::int64_t cut_rows(std::int64_t most, std::int64_t parts) const {
    return even_block(m_, std::min(most, ceil_div(m_, parts)), tile_rows());
  }

  /// Task i; those with the same rows, or where a is shared the same columns, are neighbours.
  struct Task {
    Range rows, strips;
  };
  Task task_at(std::int64_t i) const {
    const bool a = shared_ == Shared::kA;
    const std::int64_t row = a ? i % row_tasks() : i / column_tasks();
    const std::int64_t column = a ? i / row_tasks() : i % column_tasks();
    return {Range{0, m_}.piece(row, rows_of_task_),
            Range{0, strips_}.piece(column, strips_of_task_)};
  }

  void multiply_task(SharedInput& shared, std::int64_t i, int thread) const {
    const Task task = task_at(i);
    auto* own_b = static_cast<float*>(stream_.thread_workspace(thread));
    float* own_a = own_b + kFloatsOfB;
    float* own_sums = own_a + kFloatsOfA;
    const std::int64_t rows_at_once = round_up(kRowBlock, tile_rows());
    const bool one_pass = task.rows.size() <= rows_at_once;
    if (out_.row_sums != nullptr && task.strips.begin == 0) sum_rows(task.rows);
    for (std::int64_t block = 0; block < depth_blocks_; ++block) {
      const Range depth = depth_of(block);
      const float* panels = own_a;
      if (a_in_place_) {
        panels = static_cast<const float*>(a_.data) + task.rows.begin * a_.ld + depth.begin;
      } else if (shared_ == Shared::kA) {
        panels = shared.get({task.rows.begin / tile_rows(), ceil_div(task.rows.end, tile_rows())},
                            block);
      } else {
        pack_rows(own_a, task.rows, depth);
      }
      for (std::int64_t pass = 0; pass * rows_at_once < task.rows.size(); ++pass) {
        const Range rows = task.rows.piece(pass, rows_at_once);
        for (std::int64_t strip = task.strips.begin; strip < task.strips.end; ++strip) {
          GemmBlock work;
          work.a_ld = a_in_place_ ? a_.ld : 0;
          work.a = panels + (rows.begin - task.rows.begin) * (a_in_place_ ? a_.ld : depth.size());
          work.depth = depth.size();
          work.row = rows.begin;
          work.rows = rows.size();
          work.col = columns_of(strip).begin;
          work.cols = columns_of(strip).size();
          work.first = block == 0;
          work.last = block == depth_blocks_ - 1;
          if (out_.c_type == DType::kF32) {
            work.partial = static_cast<float*>(out_.c) + work.row * out_.ld + work.col;
            work.partial_ld = out_.ld;
          } else {
            work.partial_ld = strips_of_task_ * tile_cols();
            work.partial = own_sums + (rows.begin - task.rows.begin) * work.partial_ld +
                           (strip - task.strips.begin) * tile_cols();
          }
          if (shared_ == Shared::kB) {
            work.b = shared.get({strip, strip + 1}, block);
            work.b_stride = tile_cols();
            prefetch_rows(work, i, block, strip - task.strips.begin, task.strips.size());
          } else {
            // A strip that is used once is overwritten by the next one, and so stays in cache.
            const std::int64_t slot = one_pass ? 0 : strip - task.strips.begin;
            set_strip(work, own_b + slot * tile_cols() * depth_block_, depth, pass == 0);
            if (pass == 0) prefetch_strip(work, i, block, strip);
          }
          kernels_.multiply(work, out_);
        }
      }
    }
  }

  void sum_rows(const Range& rows) const {
    const auto sums_size = static_cast<std::int64_t>(size_of(out_.row_sums_type));
    const auto a_size = static_cast<std::int64_t>(size_of(a_.dtype));
    kernels_.column_sums(static_cast<std::byte*>(out_.row_sums) + rows.begin * sums_size,
                         out_.row_sums_type,
                         static_cast<const std::byte*>(a_.data) + rows.begin * a_size, a_.dtype,
                         a_.ld, k_, rows.size(), out_.accumulate_row_sums);
  }

  void pack_rows(float* to, const Range& rows, const Range& depth) const {
    for (std::int64_t row = rows.begin; row < rows.end; row += tile_rows()) {
      kernels_.pack_a(to, a_, row, std::min(tile_rows(), rows.end - row), depth.begin,
                      depth.size());
      to += tile_rows() * depth.size();
    }
  }

  /// Packs a strip of b, unless it is already, or leaves it in place.
  void set_strip(GemmBlock& work, float* packed, const Range& depth, bool is_new) const {
    if (b_in_place_ && work.cols == tile_cols()) {
      work.b = static_cast<const float*>(b_.data) + depth.begin * b_.ld + work.col;
      work.b_stride = b_.ld;
      return;
    }
    if (is_new) kernels_.pack_b(packed, b_, work.col, work.cols, depth.begin, depth.size());
    work.b = packed;
    work.b_stride = tile_cols();
  }

  // What a thread packs next is the rest of its task, then most likely that of the task `threads_`
  // further on.

  void prefetch_strip(GemmBlock& work, std::int64_t i, std::int64_t block,
                      std::int64_t strip) const {
    const Range strips = task_at(i).strips;
    if (strip + 1 < strips.end) return set_next(work, b_, columns_of(strip + 1), depth_of(block));
    if (block + 1 < depth_blocks_) {
      return set_next(work, b_, columns_of(strips.begin), depth_of(block + 1));
    }
    if (i + threads_ >= column_tasks() * row_tasks()) return;
    set_next(work, b_, columns_of(task_at(i + threads_).strips.begin), depth_of(0));
  }

  /// Part `part` of `parts` of the rows.
  void prefetch_rows(GemmBlock& work, std::int64_t i, std::int64_t block, std::int64_t part,
                     std::int64_t parts) const {
    const bool same_task = block + 1 < depth_blocks_;
    if (!same_task && i + threads_ >= column_tasks() * row_tasks()) return;
    Range rows = task_at(same_task ? i : i + threads_).rows;
    Range depth = depth_of(same_task ? block + 1 : 0);
    Range& outer = a_.depth_contiguous ? rows : depth;
    outer = outer.piece(part, ceil_div(outer.size(), parts));
    if (outer.size() > 0) set_next(work, a_, rows, depth);
  }

  static void set_next(GemmBlock& work, const GemmOperand& x, const Range& w, const Range& depth) {
    const Range& outer = x.depth_contiguous ? w : depth;
    const Range& inner = x.depth_contiguous ? depth : w;
    const auto element = static_cast<std::int64_t>(size_of(x.dtype));
    work.next = static_cast<const char*>(x.data) + element * (outer.begin * x.ld + inner.begin);
    work.next_rows = outer.size();
    work.next_row_bytes = element * inner.size();
    work.next_row_stride = element * x.ld;
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
  const bool a_in_place_, b_in_place_;  ///< b: its whole strips
  const std::int64_t strips_;
  Shared shared_;
  std::int64_t rows_of_task_;
  std::int64_t strips_of_task_;
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
