#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bench/model_options.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/process_group.h"
#include "llmc/core/device.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"

namespace llmc::bench {

/// When the ranks exchange gradients and parameters.
enum class ExchangeTime {
  kBesidePasses,  ///< each bucket as soon as its gradients are final, until it is read
  kAfterPasses,   ///< everything between the last backward pass and the next forward pass
};

/// Training steps of one model, on random tokens that every rank draws once. The host runs one step
/// ahead, as the Trainer does. All ranks make the same calls.
class TrainingSteps {
 public:
  /// Allocates the model and draws its weights. comm: of the group, null with one rank.
  /// options.config: with every value filled in.
  TrainingSteps(const Device& device, ProcessGroup& group, Communicator* comm,
                const ModelConfig& model, const ModelOptions& options);

  /// A new optimizer, in place of the one there was, which makes room first. comm: null with one
  /// rank, else what it exchanges over, which must outlive it.
  void start_optimizer(Communicator* comm, ExchangeTime when);
  struct Taken {
    std::vector<double> seconds;  ///< of each step
    std::vector<double> waited;   ///< of these, for other ranks
    void append(const Taken& more);
  };
  Taken take(std::int64_t count);
  /// The same of at least three steps and of as many as last `seconds` by the clock of rank 0: were
  /// each to go by its own, some would wait for steps that others do not take.
  Taken measure(double seconds);
  /// Forward and head, backward, update: seconds a step, waiting after each of these parts.
  struct Phases {
    double forward = 0, backward = 0, update = 0;
  };
  Phases measure_phases(int count);

  /// Of all ranks.
  double tokens_per_step() const { return tokens_per_step_; }
  /// What the newest step that was read said.
  const StepBlock& last() const { return last_; }
  Transformer& model() { return model_; }
  const AdamW& optimizer() const { return *optimizer_; }

 private:
  void queue();
  void mark_wait(Stream& stream);
  double waited(std::int64_t step) const;
  template <class Part>
  void timed(double Phases::*sum, const Part& part);

  ProcessGroup& group_;
  TrainConfig config_;
  double tokens_per_step_;
  Transformer model_;
  std::optional<AdamW> optimizer_;
  Readback readback_;
  std::vector<std::vector<std::int32_t>> batches_;
  std::int64_t step_ = 0;
  StepBlock last_;
  std::optional<Phases> phases_;  ///< sums, while they are measured
  /// Beginnings and ends of waits, in turn. One step is read while the next is under way.
  struct Waits {
    std::vector<TimeMark> marks;  ///< used again and again
    std::size_t used = 0;
  };
  Waits waits_[2];
};

}  // namespace llmc::bench
