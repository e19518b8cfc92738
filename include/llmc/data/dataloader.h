#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "llmc/data/batch_source.h"

namespace llmc {

/// What follows the last row of an epoch.
enum class Tail {
  kNext,  ///< the first row of the next one, in the same batch: for training
  kPad,   ///< rows of ignored targets up to the end of the batch: for evaluation
};

struct DataLoaderOptions {
  std::int64_t B = 1;  ///< rows of a batch of one rank
  std::int64_t T = 1;  ///< tokens of a row
  int rank = 0;
  int world_size = 1;
  bool shuffle = false;
  std::uint64_t seed = 0;  ///< of the shuffle
  Tail tail = Tail::kNext;
  std::int64_t vocab_size = 0;  ///< above 0: tokens outside it are an error
  int read_ahead = 4;           ///< batches read before they are asked for
};

/// Reads batches from token files (shards) in a thread of its own.
///
/// Row i of a shard with tokens t is x = t[i·T .. i·T + T), y = t[i·T + 1 .. i·T + T + 1). What is
/// left of a shard behind its last whole row is dropped with kNext, and with kPad is a row that
/// ends with ignored targets. An epoch takes the shards one after the other, and in each one its
/// rows. So without shuffle rows are windows of T tokens from the first token on. With shuffle, the
/// order of the shards, and of the rows in each shard, is a permutation that depends on the seed,
/// the epoch and the shard only.
///
/// The rows of all epochs make one sequence, of which world_size·B at a time are a batch: rank r
/// gets rows r·B to r·B + B - 1 of these. So the rows of a step depend neither on B nor on the
/// number of ranks, but on how many there are. A position is an epoch, a shard and a row, so a run
/// may be resumed with another B and number of ranks. T, the shuffle, the seed and the shards must
/// agree.
///
/// What goes wrong in the thread is thrown by the `next` that would have returned that batch, and
/// by each one after it until `restore` or `reset`.
class DataLoader : public BatchSource {
 public:
  /// Opens and checks every shard. See glob_files for a list from a pattern. Throws a config error
  /// for unusable options, an input error for unusable files or if no shard has a row; those that
  /// have none are left out with a warning.
  DataLoader(std::vector<std::filesystem::path> shards, const DataLoaderOptions& options);
  ~DataLoader() override;

  std::int64_t B() const override;
  std::int64_t T() const override;
  void next(Batch& batch) override;
  SourceState state() const override;
  void restore(const SourceState& state) override;
  void reset() override;
  std::int64_t epoch() const override;
  std::int64_t batches_per_epoch() const override;
  std::int64_t tokens_per_epoch() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
