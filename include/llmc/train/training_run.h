#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/comm/process_group.h"
#include "llmc/core/device.h"
#include "llmc/core/file.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/tokenizer.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/model_loader.h"
#include "llmc/nn/model_config.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"
#include "llmc/train/events.h"
#include "llmc/train/train_config.h"
#include "llmc/train/trainer.h"

namespace llmc {

/// Where a rank runs: its GPU, of those that it sees, and how many ranks its machine has.
struct RankPlace {
  int gpu = 0;
  int local_ranks = 1;
};

/// How the options device, threads, isa, attention and tune_matmul open a Device. Ranks on one
/// machine share its processors. Timed choices of matrix products are kept
/// in the user's cache folder. Throws a config error for a device that this build does not serve.
DeviceOptions device_options(const TrainConfig& config, const RankPlace& place = {});

/// How the options comm_init, comm_address and so on start the processes of a run.
StartUp start_up_options(const TrainConfig& config);

/// What a run will do, worked out from the settings that were given and from what is on disk.
/// Nothing is changed there.
struct RunPlan {
  TrainConfig config;  ///< every value in effect
  int ranks = 1;
  ModelConfig model;
  std::unique_ptr<Tokenizer> tokenizer;             ///< null: none
  std::optional<ModelLoader> init;                  ///< where weights come from, if not drawn
  std::optional<std::filesystem::path> checkpoint;  ///< to go on from
  bool clear_folder = false;                        ///< out_dir holds a run that is to go
};

/// Works out a run of `ranks` ranks. `given`: settings in the order in which they were given, later
/// ones win; on resume the others come from the checkpoint. `name` is for the default out_dir.
/// Throws config and input errors for options that contradict each other or the checkpoint, and for
/// a folder that holds a run without leave to touch it.
RunPlan plan_run(std::span<const ConfigSetting> given, std::string_view name, int ranks = 1);

/// Fills in the sizes that follow from others (vocab_size, seq_len, tokens_per_step and so on) and
/// returns the model they describe. tokenizer and init may be null.
ModelConfig resolve(TrainConfig& config, const Tokenizer* tokenizer, const ModelLoader* init,
                    int ranks = 1);

/// A training run with all it needs, from planning to the end: what `train` is made of. With
/// several ranks, each makes one and all make the same calls; rank 0 alone writes to the run
/// folder, but for the others' slices in checkpoints.
class TrainingRun {
 public:
  /// Opens the device and the data and plans memory; allocates none for tensors and writes nothing.
  /// With dry_run, data are left alone and only `report` may follow.
  explicit TrainingRun(RunPlan plan);
  /// As one rank of comm's, for which the plan was made; null: the only one. comm must be open on
  /// the device and outlive this. Throws a config error, on every rank, where they do not agree on
  /// what to do.
  TrainingRun(const Device& device, RunPlan plan, Communicator* comm = nullptr);
  ~TrainingRun();

  const TrainConfig& config() const { return plan_.config; }
  /// Parameters, FLOPs per token and the table of memory of a rank, for people.
  std::string report() const;

  /// Allocates, loads or draws the weights, and goes to the checkpoint if there is one. Only the
  /// last thing it does touches the run folder: makes it, clears it, or cuts its logs back. A new
  /// folder is removed again if it fails.
  void open();
  /// Adds a sink to those of the run folder, which rank 0 has: log.jsonl, main.log, loss.svg.
  void add_sink(EventSink& sink);
  /// See Trainer::run. `stop` may be null.
  StopEvent run(const std::atomic<int>* stop);

 private:
  int rank() const { return comm_ ? comm_->rank() : 0; }
  void barrier();
  void agree();
  void set_up();
  void open_data();
  void open_choices();
  void set_up_folder();

  RunPlan plan_;
  std::unique_ptr<Communicator> planned_;  // for a dry run
  Communicator* comm_ = nullptr;           // null: one rank
  std::optional<FolderLock> lock_;         // on the run folder, while this lives
  Device device_;
  std::optional<Transformer> model_;
  std::optional<AdamW> optimizer_;
  std::unique_ptr<DataLoader> train_source_;
  std::unique_ptr<DataLoader> val_source_;
  TextFacts val_facts_;
  std::vector<ChoiceExample> choices_;
  std::optional<CheckpointReader> checkpoint_;
  std::optional<Trainer> trainer_;
  std::vector<std::unique_ptr<EventSink>> folder_sinks_;
};

}  // namespace llmc
