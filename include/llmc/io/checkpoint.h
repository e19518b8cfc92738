#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/core/dtype.h"
#include "llmc/data/batch_source.h"
#include "llmc/data/tokenizer.h"
#include "llmc/io/weight_source.h"
#include "llmc/nn/model_config.h"
#include "llmc/nn/parameters.h"
#include "llmc/optim/optimizer.h"

namespace llmc {

// A run folder holds checkpoints/step_00001000/ with model.safetensors (weights),
// optimizer.safetensors (state) and manifest.json, which says what the others must contain. A
// checkpoint is written under a temporary name, synced and renamed, so under its own name it is
// whole. docs/formats.md describes the files.

/// Name of the folder in a run that holds its copy of the tokenizer.
inline constexpr const char* kTokenizerFolder = "tokenizer";

/// What a checkpoint records besides tensors.
struct CheckpointInfo {
  std::int64_t step = 0;  ///< updates finished
  ModelConfig model;
  std::string train_config;                    ///< as the trainer wrote it; not read here
  std::map<std::string, std::uint64_t> seeds;  ///< keys of the random number generators
  SourceState loader;                          ///< position in the training data
  std::int64_t updates = 0;                    ///< StepBlock::updates; skipped steps do not count
  StepGuard guard;                             ///< windows of accepted losses and norms
  std::string gemm_choices;                    ///< matrix-product plans to repeat; may be empty
  std::string tokenizer_hash;                  ///< empty: unknown
  std::string optimizer;                       ///< Optimizer::name; empty: weights alone are stored
  int world_size = 1;                          ///< ranks that wrote it
  std::optional<double> val_loss;              ///< at this step, if it was measured
  std::map<std::string, std::string> extra;    ///< whatever else the caller must get back
};

/// The best checkpoint of a run so far: checkpoints/best.json.
struct BestCheckpoint {
  std::int64_t step = 0;
  double val_loss = 0;
  std::filesystem::path folder;
};

/// The folder of a step: run/checkpoints/step_00001000.
std::filesystem::path checkpoint_folder(const std::filesystem::path& run, std::int64_t step);
/// Every checkpoint of a run, oldest step first; empty if there is none.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);
/// The one of the highest step.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run);
/// The one with the lowest validation loss, as long as it is there.
std::optional<BestCheckpoint> best_checkpoint(const std::filesystem::path& run);
/// Reads every byte and compares all sizes and checksums; throws an input error that names the
/// first damage.
void verify_checkpoint(const std::filesystem::path& folder);
/// Removes the checkpoints of steps above `step`, for a run that goes on from there.
void remove_checkpoints_after(const std::filesystem::path& run, std::int64_t step);

/// Writes the checkpoints of one run. `save` copies the state into memory planned for it and
/// returns; a thread writes from there and never touches the model. What goes wrong in the thread
/// is thrown by the next call.
///
/// Where ranks hold slices of the state (Sharing::sliced), each writes its own, into one folder
/// that all see; rank 0 writes the rest, and the manifest when all have finished. Otherwise rank 0
/// writes everything. In both cases all ranks make the same calls.
class CheckpointWriter {
 public:
  struct Options {
    /// Newest checkpoints to keep; the best one and the one being written stay in any case. 0: all.
    std::int64_t keep = 3;
  };

  /// Plans; `parameters` and `optimizer` must outlive it. The optimizer must be allocated.
  CheckpointWriter(std::filesystem::path run, const ParameterSet& parameters,
                   const Optimizer& optimizer, const Options& options);
  /// Waits for the write under way, but not long for other ranks'; an error that nobody was told is
  /// logged.
  ~CheckpointWriter();
  CheckpointWriter(CheckpointWriter&&) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) noexcept;

  /// Host memory for the copy.
  std::size_t snapshot_bytes() const;
  /// Allocates it; a memory error if it cannot be had.
  void allocate();

  /// Waits for the write under way, copies weights, state and guard as they are after the queued
  /// work, and starts to write `info.step`'s checkpoint, in place of one that is there.
  /// `info.guard`, `info.optimizer` and `info.world_size` are filled in here. Calls `allocate` if
  /// nobody has.
  void save(Stream& stream, CheckpointInfo info);
  /// Waits for the write under way and throws what went wrong.
  void wait();
  /// Throws what went wrong with a write that has ended; does not wait for one that goes on.
  void check();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes a run folder that holds one checkpoint, of weights alone, and the tokenizer where there
/// is one: to start from, to evaluate and to sample, not to resume. It appears whole or not at all.
/// `info` says what else to record. Throws an input error where the folder already exists.
void write_model_checkpoint(const std::filesystem::path& run, WeightSource& source, DType dtype,
                            CheckpointInfo info, const Tokenizer* tokenizer);

/// Reads one checkpoint folder. The manifest, the sizes of all files and their headers are checked
/// when it is opened, the checksum of each tensor when it is read. Files without weights may be
/// missing unless more than weights is asked for. Errors are input errors that name the file; after
/// one, what was being filled is in part.
class CheckpointReader : public WeightSource {
 public:
  explicit CheckpointReader(const std::filesystem::path& folder);
  ~CheckpointReader() override;
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;

  const CheckpointInfo& info() const;
  const std::filesystem::path& path() const override;
  const ModelConfig& config() const override;
  DType dtype() const override;
  std::size_t weight_count() const override;
  /// Into f32 the masters of a bf16 run, where they are there, are preferred to its weights.
  StoredWeight weight(const std::string& name, DType wanted) override;

  /// Fills weights, optimizer state, guard and block->updates: what follows repeats the run to the
  /// bit when dtypes are the same. Into another dtype, masters and f32 weights stand for each
  /// other. Throws a config error for another optimizer than the one recorded.
  void read_all(Stream& stream, const ParameterSet& parameters, Optimizer& optimizer,
                StepBlock* block /*device*/);
  /// Reads every byte and compares every checksum.
  void verify();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
