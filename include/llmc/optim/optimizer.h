#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/arena.h"
#include "llmc/core/device.h"
#include "llmc/core/tensor.h"
#include "llmc/nn/parameters.h"
#include "llmc/ops/step.h"

namespace llmc {

/// Name of the state that holds the exact fp32 values of bf16 parameters. Checkpoints use it to go
/// from one precision to the other.
inline constexpr std::string_view kMasterState = "master";

/// A stretch of one bucket whose parameters belong to one group: what one fused update covers.
struct UpdateRange {
  std::size_t bucket;
  std::int64_t begin;  ///< first element inside the bucket, a multiple of 64
  std::int64_t count;  ///< elements; the padding between parameters is part of it
  OptimizerGroup group;
  std::int64_t first_index;  ///< number of the first element in the whole model
};

/// The fewest ranges that cover every parameter of a table, in storage order.
std::vector<UpdateRange> update_ranges(const ParameterSet& parameters);

/// Turns gradients into an update of the parameters. This base class owns what every optimizer
/// needs: the state, which lies like the parameters and is saved under their names; the global norm
/// of the gradients; and the guard that clips and skips. A new optimizer declares its state in its
/// constructor and overrides `name` and `update`:
///
///     class Sgd : public Optimizer {
///      public:
///       explicit Sgd(const ParameterSet& parameters)
///           : Optimizer(parameters, {}), momentum_(declare_state("momentum")) {}
///       std::string_view name() const override { return "sgd"; }
///      private:
///       void update(Stream& stream, const StepBlock* block) override {
///         for (const UpdateRange& range : ranges()) {
///           // reads gradients(range) and *block, writes state(momentum_, range), values(range)
///         }
///       }
///       StateId momentum_;
///     };
///
/// Used in four steps: construct (plans memory), `allocate`, `start` once the weights are there,
/// then `step` after every backward pass. Nothing in `step` allocates or waits. Move-only; the
/// ParameterSet must outlive it.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Stored in checkpoints: state is only restored into an optimizer of the same name.
  virtual std::string_view name() const = 0;

  const ParameterSet& parameters() const { return *parameters_; }
  const GuardOptions& guard_options() const { return guard_options_; }
  /// The plan of its memory, before `allocate` too.
  const Arena& arena() const { return arena_; }
  /// Throws a memory error if it does not fit.
  void allocate(const Device& device);
  /// Sets the state for a first update of the parameters as they are now.
  void start(Stream& stream);

  /// One optimizer step on the gradients in the ParameterSet: their norm, the decisions of
  /// finish_gradients, the update. block: device memory, as begin_step and the losses of the
  /// micro-steps left it (Transformer::step_block). Throws a config error before `start`.
  void step(Stream& stream, StepBlock* block /*device*/);

  /// Calls `visit` with every state tensor of every parameter, in its shape, f32, named
  /// "<state>.<parameter>". The tensors may be read and written. Valid after `allocate`.
  using StateVisitor = std::function<void(const std::string& name, const Tensor& tensor)>;
  void visit_state(const StateVisitor& visit) const;
  /// The guard's windows, which are state too. Both wait for queued work.
  StepGuard read_guard(Stream& stream) const;
  void write_guard(Stream& stream, const StepGuard& guard);

 protected:
  using StateId = std::size_t;

  /// parameters: planned, with gradients. Throws a config error for guard options out of range.
  Optimizer(const ParameterSet& parameters, const GuardOptions& guard);
  Optimizer(Optimizer&&) noexcept = default;
  Optimizer& operator=(Optimizer&&) noexcept = default;

  /// Declares one f32 value per parameter element; zero at the start. For constructors.
  StateId declare_state(std::string name);

  const std::vector<UpdateRange>& ranges() const { return ranges_; }
  // Views of a range, (count).
  Tensor values(const UpdateRange& range) const;
  Tensor gradients(const UpdateRange& range) const;
  Tensor state(StateId id, const UpdateRange& range) const;

 private:
  /// Fills state that does not start at zero; called by `start`.
  virtual void start_state(Stream& /*stream*/) {}
  /// Updates values and state of every range. Changes nothing where block->skip is set.
  virtual void update(Stream& stream, const StepBlock* block /*device*/) = 0;

  struct State {
    std::string name;
    std::vector<Arena::Id> segments;  // one per bucket, (size) f32
  };
  Tensor guard_bytes() const;

  const ParameterSet* parameters_;
  GuardOptions guard_options_;
  std::vector<UpdateRange> ranges_;
  Arena arena_;
  Arena::Id partials_id_;
  Arena::Id guard_id_;
  std::vector<State> states_;
  bool started_ = false;
};

}  // namespace llmc
