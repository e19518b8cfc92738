#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/data/batch_source.h"
#include "llmc/data/tokenizer.h"
#include "llmc/infer/evaluator.h"
#include "llmc/infer/sampler.h"
#include "llmc/io/checkpoint.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/optimizer.h"
#include "llmc/optim/schedule.h"
#include "llmc/train/events.h"
#include "llmc/train/train_config.h"

namespace llmc {

/// What is known about the text of validation data besides its tokens.
struct TextFacts {
  std::optional<double> bytes_per_token;
  std::optional<double> entropy_bits_per_byte;  ///< exact, as of generated text
};

/// Micro-batches of a step. Throws a config error if tokens_per_step is not a multiple of
/// micro_tokens, the tokens of one micro-batch over all ranks. 0 stands for one micro-batch.
std::int64_t micro_steps_of(std::int64_t tokens_per_step, std::int64_t micro_tokens);

/// The training loop: steps of forward, backward and update, and at their intervals validation,
/// samples and checkpoints. It borrows everything it works with; all of it must outlive the
/// Trainer. Of the configuration it reads the groups step, optimizer (schedule and max_bad_steps)
/// and run, and the seed; what it does can as well be written by hand from the calls of model,
/// source and optimizer (examples/).
///
///     Trainer trainer(config, model, source, optimizer);
///     trainer.add_sink(console);
///     trainer.run();
///
/// With several ranks (Optimizer::sharing), all of them run one alike. Each trains on its share of
/// the batches and validates on its share of all of them; the numbers in events are those of all
/// ranks. Rank 0 samples, and writes what is not a slice of the state. Sinks are asked wherever
/// they are; the run folder's belong to rank 0.
class Trainer {
 public:
  /// The model must be allocated and hold its weights, the optimizer must be started. Throws a
  /// config error if tokens_per_step (0: one micro-batch) is no multiple of the source's
  /// micro-batch over all ranks, or if neither max_steps nor the source says where the run ends.
  Trainer(const TrainConfig& config, Transformer& model, BatchSource& source, Optimizer& optimizer);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // What a run has besides training; each call is optional and comes before `run`.
  /// Source to validate on, of at most the model's B and T; the whole one on every rank.
  void validate_on(BatchSource& source, const TextFacts& facts = {});
  /// Questions to ask every config.eval_choices_every steps. Throws an input error if the model
  /// cannot be asked them (check_choices).
  void ask(std::vector<ChoiceExample> examples);
  /// Decodes samples; without it they are printed as ids and start from id 0.
  void decode_with(const Tokenizer& tokenizer);
  /// Writes checkpoints into the folder of a run; keep: see CheckpointWriter. tokenizer_hash goes
  /// into them.
  void save_to(const std::filesystem::path& run, std::string tokenizer_hash = {});
  void add_sink(EventSink& sink);
  /// A value other than 0 ends the run after the step under way, with a checkpoint, once what is
  /// due at that step is done. With several ranks it travels with the next step, and all of them
  /// end after the one that follows.
  void stop_when(const std::atomic<int>& flag);

  /// Goes on from a checkpoint: sets weights, optimizer state, source and step. The run then
  /// continues with the same bits as if it had not stopped.
  void resume(CheckpointReader& checkpoint);

  /// Runs to the end, or until something stops it. What model, source or checkpoint throw ends the
  /// run; what a sink throws does not.
  StopEvent run();

  std::int64_t total_steps() const { return total_steps_; }
  /// Steps finished.
  std::int64_t step() const { return step_; }

 private:
  const Sharing& sharing() const { return optimizer_.sharing(); }
  StopEvent run_steps();
  void hear_stop(const StepBlock& block);
  void warn_of_useless_options() const;
  void queue_step();
  void snapshot_step();
  void finish_pending();
  void finish_step(const StepBlock& block);
  void at_intervals(bool last);
  void validate();
  void ask_choices();
  void sample();
  std::string sampled_text();
  void save();
  void emit(const Event& event);
  StartEvent start_event() const;
  std::int64_t tokens_per_step() const;
  int stop_flag() const;
  bool stop_asked() const;
  bool due(std::int64_t interval, bool last) const;
  std::int64_t validation_tokens() const;

  TrainConfig config_;
  Transformer& model_;
  BatchSource& source_;
  Optimizer& optimizer_;
  BatchSource* val_source_ = nullptr;
  TextFacts val_facts_;
  std::vector<ChoiceExample> choices_;
  const Tokenizer* tokenizer_ = nullptr;
  std::filesystem::path run_;  ///< empty: no checkpoints
  std::string tokenizer_hash_;
  std::optional<CheckpointWriter> writer_;
  std::vector<EventSink*> sinks_;
  const std::atomic<int>* stop_flag_ = nullptr;

  std::int64_t micro_steps_;
  std::int64_t total_steps_;
  Schedule schedule_;
  Evaluator evaluator_;
  std::unique_ptr<Sampler> sampler_;
  Batch batch_;
  Readback snapshot_;  ///< the step block of the last queued step
  bool pending_ = false;
  bool attached_ = false;  ///< the optimizer, to the model

  std::int64_t step_ = 0;  ///< queued
  std::int64_t updates_ = 0;
  std::int64_t bad_in_a_row_ = 0;
  std::optional<double> best_loss_;
  std::int64_t best_step_ = 0;
  std::optional<double> last_val_loss_;
  std::int64_t last_val_step_ = -1;
  std::int64_t last_choices_step_ = -1;
  std::int64_t last_saved_step_ = -1;
  bool last_step_finite_ = true;
  bool sink_asks_stop_ = false;
  std::optional<StopReason> stop_;
  int signal_ = 0;
  TimeMark& mark(std::int64_t step) { return marks_[static_cast<std::size_t>(step) % 3]; }
  std::array<TimeMark, 3> marks_;  ///< ends of steps; after a pause, that of the pause
  double mean_ms_ = 0;             ///< of a step, lately
  double pace_ms_ = 0;             ///< of a step, over a longer time
  std::int64_t timed_steps_ = 0;
};

}  // namespace llmc
