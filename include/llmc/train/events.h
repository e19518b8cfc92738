#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "llmc/infer/evaluator.h"
#include "llmc/ops/step.h"

namespace llmc {

// What a Trainer reports. `step` counts finished steps, so the first one is step 1, and what is
// measured before it belongs to step 0. Losses are in nats per token.

/// The run begins, or goes on from a checkpoint.
struct StartEvent {
  std::string config;   ///< the values in effect, as flat TOML
  std::string out_dir;  ///< empty: the run keeps nothing
  std::string device;
  std::int64_t parameters = 0;
  double flops_per_token = 0;
  std::int64_t micro_batch = 0;
  std::int64_t seq_len = 0;
  std::int64_t micro_steps = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t first_step = 0;  ///< steps finished before: 0, or those of the checkpoint
  std::int64_t total_steps = 0;
  std::int64_t train_tokens = 0;  ///< of one epoch; 0: without end
  std::int64_t val_tokens = 0;    ///< of one validation; 0: none
  /// Exact entropy of the validation data, which no model can beat, where that is known.
  std::optional<double> val_entropy_bits_per_byte;
};

/// A step is finished; there is one event for each. The loss is that of its batch before the
/// update.
struct StepEvent {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;
  float loss = 0;
  float grad_norm = 0;  ///< before clipping
  float lr = 0;
  std::int64_t tokens = 0;    ///< trained on since step 0
  double ms = 0;              ///< validation, samples and checkpoints not counted
  double tokens_per_s = 0;    ///< moving average
  std::optional<double> mfu;  ///< fraction of the device's peak, where that is known
  double seconds_left = 0;    ///< at the mean pace of the last hundreds of steps
  bool log = true;            ///< a step that `log_every` selects, or the first or last one
};

/// A step that changed nothing.
struct SkipEvent {
  std::int64_t step = 0;
  SkipReason reason = kNoSkip;
  float loss = 0;
  float grad_norm = 0;
  std::int64_t in_a_row = 0;  ///< skips since the last update, this one included
};

/// A validation is done.
struct ValEvent {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t tokens = 0;              ///< counted in the loss
  std::optional<double> bits_per_byte;  ///< where the bytes of the tokens are known
  double ms = 0;
  bool best = false;  ///< the lowest loss so far
};

/// The model was asked multiple-choice questions.
struct ChoicesEvent {
  std::int64_t step = 0;
  ChoiceAccuracy accuracy;
  double ms = 0;
};

/// Text drawn from the model.
struct SampleEvent {
  std::int64_t step = 0;
  std::string text;  ///< the ids, separated by spaces, where there is no tokenizer
};

/// A checkpoint is taken; it is on disk by the next one, or by the StopEvent.
struct CheckpointEvent {
  std::int64_t step = 0;
  std::filesystem::path path;
  double ms = 0;  ///< that training waited for it
};

enum class StopReason {
  kFinished,  ///< all steps are done
  kSink,      ///< a sink asked for it
  kSignal,    ///< the stop flag was set, on any rank
  kBadSteps,  ///< max_bad_steps skips in a row
};

/// "finished", "sink", "signal", "bad steps".
std::string_view name_of(StopReason reason);

/// "loss not finite" and so on.
std::string_view name_of(SkipReason reason);

/// The run ends.
struct StopEvent {
  std::int64_t step = 0;
  StopReason reason = StopReason::kFinished;
  int signal = 0;                   ///< with kSignal, what the flag held
  double seconds = 0;               ///< since the StartEvent
  std::optional<double> val_loss;   ///< of the last validation
  std::optional<double> best_loss;  ///< lowest validation loss
  std::int64_t best_step = 0;       ///< where that was
};

using Event = std::variant<StartEvent, StepEvent, SkipEvent, ValEvent, ChoicesEvent, SampleEvent,
                           CheckpointEvent, StopEvent>;

/// The step an event belongs to.
std::int64_t step_of(const Event& event);

/// What a sink wants next.
enum class SinkAction { kContinue, kStop };

/// Takes the events of a run, in order, from one thread. A sink that throws is left out from then
/// on, with a warning; the run goes on.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual SinkAction on_event(const Event& event) = 0;
};

}  // namespace llmc
