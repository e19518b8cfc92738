#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace llmc {

/// The target of a position that does not count in the loss.
constexpr std::int32_t kIgnoredTarget = -1;

/// One micro-batch of one rank, in host memory.
struct Batch {
  std::vector<std::int32_t> inputs;   ///< (B, T) token ids
  std::vector<std::int32_t> targets;  ///< (B, T) the next token of each input, or kIgnoredTarget
};

/// Where a BatchSource stands: named 64-bit numbers that a checkpoint stores as they are.
using SourceState = std::map<std::string, std::int64_t>;

/// Hands out batches of training or validation data. A source is used by one thread at a time.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Rows of a batch.
  virtual std::int64_t B() const = 0;
  /// Tokens of a row.
  virtual std::int64_t T() const = 0;

  /// Fills `batch` with this rank's next B·T inputs and targets. After an epoch comes the next one.
  virtual void next(Batch& batch) = 0;

  /// The position after the last batch that `next` returned. A source built on the same data and
  /// restored to it goes on with exactly the batches that would have followed.
  virtual SourceState state() const = 0;
  /// Goes to a position; one that belongs to other data is an input error that names the
  /// difference.
  virtual void restore(const SourceState& state) = 0;
  /// Goes back to the first batch of epoch 0.
  virtual void reset() = 0;

  /// Epochs finished by the batches returned so far.
  virtual std::int64_t epoch() const = 0;
  /// Calls of `next` that make an epoch on each rank, rounded down; 0 for a source without end.
  virtual std::int64_t batches_per_epoch() const = 0;
  /// Targets of an epoch over all ranks, the ignored ones not counted; 0 for a source without end.
  /// A run of N epochs has as many steps as N times these tokens fill.
  virtual std::int64_t tokens_per_epoch() const = 0;
};

}  // namespace llmc
