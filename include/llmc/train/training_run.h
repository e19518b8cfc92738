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

/// How the options device, threads, isa, attention and tune_matmul open a Device. Timed choices of
/// matrix products are kept in the user's cache folder. Throws a config error for a device that
/// this build does not serve.
DeviceOptions device_options(const TrainConfig& config);

/// How the options comm_init, comm_address and so on start the processes of a run.
StartUp start_up_options(const TrainConfig& config);

/// What a run will do, worked out from the settings that were given and from what is on disk.
/// Nothing is changed there.
struct RunPlan {
  TrainConfig config;  ///< every value in effect
  ModelConfig model;
  std::unique_ptr<Tokenizer> tokenizer;             ///< null: none
  std::optional<ModelLoader> init;                  ///< where weights come from, if not drawn
  std::optional<std::filesystem::path> checkpoint;  ///< to go on from
  bool clear_folder = false;                        ///< out_dir holds a run that is to go
};

/// Works out a run. `given`: settings in the order in which they were given, later ones win; on
/// resume the others come from the checkpoint. `name` is for the default out_dir. Throws config and
/// input errors for options that contradict each other or the checkpoint, and for a folder that
/// holds a run without leave to touch it.
RunPlan plan_run(std::span<const ConfigSetting> given, std::string_view name);

/// Fills in the sizes that follow from others (vocab_size, seq_len, tokens_per_step and so on) and
/// returns the model they describe. tokenizer and init may be null.
ModelConfig resolve(TrainConfig& config, const Tokenizer* tokenizer, const ModelLoader* init);

/// A training run with all it needs, from planning to the end: what `train` is made of.
class TrainingRun {
 public:
  /// Opens the device and the data and plans memory; allocates none for tensors and writes nothing.
  /// With dry_run, data are left alone and only `report` may follow.
  explicit TrainingRun(RunPlan plan);
  ~TrainingRun();

  const TrainConfig& config() const { return plan_.config; }
  /// Parameters, FLOPs per token and the table of memory, for people.
  std::string report() const;

  /// Allocates, loads or draws the weights, and goes to the checkpoint if there is one. Only the
  /// last thing it does touches the run folder: makes it, clears it, or cuts its logs back.
  void open();
  /// Adds a sink to those of the run folder: log.jsonl, main.log, loss.svg.
  void add_sink(EventSink& sink);
  /// See Trainer::run. `stop` may be null.
  StopEvent run(const std::atomic<int>* stop);

 private:
  void open_data();
  void open_choices();
  void set_up_folder();

  RunPlan plan_;
  std::optional<FolderLock> lock_;  // on the run folder, while this lives
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
