#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/core/arena.h"
#include "llmc/core/device.h"
#include "llmc/core/tensor.h"
#include "llmc/nn/parameters.h"
#include "llmc/ops/step.h"

namespace llmc {

/// Name of the state that holds the exact fp32 values of bf16 parameters. Checkpoints use it to go
/// from one precision to the other.
inline constexpr std::string_view kMasterState = "master";

/// How ranks that train together divide an optimizer's work. Each owns one slice of every bucket.
struct Sharing {
  Communicator* comm = nullptr;  ///< must outlive the optimizer; null: one rank
  /// 0: every rank has the whole state and updates everything. 1 (ZeRO-1): its slices only; the
  /// updated parameters are gathered. Both give the same bits.
  int zero_stage = 1;
  DType wire = DType::kF32;  ///< what gradients are rounded to before they are added up in fp32

  int ranks() const { return comm ? comm->size() : 1; }
  int rank() const { return comm ? comm->rank() : 0; }
  /// Whether a rank holds the state of its own slices only.
  bool sliced() const { return ranks() > 1 && zero_stage == 1; }
};

/// A stretch of one bucket whose parameters belong to one group: what one fused update covers.
struct UpdateRange {
  std::size_t bucket;
  std::int64_t begin;  ///< first element inside the bucket, a multiple of 64
  std::int64_t count;  ///< elements; the padding between parameters is part of it
  OptimizerGroup group;
  std::int64_t first_index;  ///< number of the first element in the whole model
};

/// The fewest ranges that cover every parameter of a table, in storage order; of slice `slice` of
/// `slices` equal ones that each bucket is cut into.
std::vector<UpdateRange> update_ranges(const ParameterSet& parameters, int slice = 0,
                                       int slices = 1);

/// State of one parameter that this rank holds: elements [begin, begin + tensor.numel()) of a
/// tensor of `shape`.
struct StatePiece {
  std::string name;  ///< "<state>.<parameter>"
  Shape shape;
  std::int64_t begin;
  Tensor tensor;  ///< f32; in `shape` where it is all of it, else flat
};

class Exchange;
class Transformer;

/// Turns gradients into an update of the parameters. This base class owns what every optimizer
/// needs: the state, which lies like the parameters and is saved under their names; the global norm
/// of the gradients; the guard that clips and skips; and with several ranks, what they exchange. A
/// new optimizer declares its state in its constructor and overrides `name` and `update`:
///
///     class Sgd : public Optimizer {
///      public:
///       explicit Sgd(const ParameterSet& parameters)
///           : Optimizer(parameters, {}), momentum_(declare_state("momentum")) {}
///       std::string_view name() const override { return "sgd"; }
///      private:
///       void update(Stream& stream, std::span<const UpdateRange> part,
///                   const StepBlock* block) override {
///         for (const UpdateRange& range : part) {
///           // reads gradients(range) and *block, writes state(momentum_, range), values(range)
///         }
///       }
///       StateId momentum_;
///     };
///
/// Used in four steps: construct (plans memory), `allocate`, `start` once the weights are there,
/// then `step` after every backward pass. Nothing in `step` allocates or waits. Move-only; the
/// ParameterSet must outlive it.
///
/// With several ranks, all of them construct it alike, have the same parameters at the start, and
/// call `step` equally often, each with the gradients of its own tokens. `attach` lets the exchange
/// go on during the passes of a Transformer.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Stored in checkpoints: state is only restored into an optimizer of the same name.
  virtual std::string_view name() const = 0;

  const ParameterSet& parameters() const { return *parameters_; }
  const GuardOptions& guard_options() const { return guard_options_; }
  const Sharing& sharing() const { return sharing_; }
  /// The plan of its memory, before `allocate` too.
  const Arena& arena() const { return arena_; }
  /// Throws a memory error if it does not fit.
  void allocate(const Device& device);
  /// Sets the state for a first update of the parameters as they are now.
  void start(Stream& stream);
  /// With several ranks, takes the hooks of a model on these parameters: each bucket's gradients
  /// are then exchanged as soon as they are final, and its parameters awaited where they are read.
  /// Comes after `allocate`. The model and the optimizer may be moved and destroyed in any order.
  void attach(Transformer& model);

  /// One optimizer step on the gradients in the ParameterSet: their norm, the decisions of
  /// finish_gradients, the update. block: device memory, as begin_step and the losses of the
  /// micro-steps left it (Transformer::step_block). Throws a config error before `start`.
  void step(Stream& stream, StepBlock* block /*device*/);
  /// What is queued from now on reads all parameters: for those that reach them without the model.
  void need_parameters(Stream& stream) const;

  /// With several ranks, calls `mark` from now on before and after whatever makes the work of the
  /// stream wait for other ranks: a TimeMark recorded in each shows for how long.
  void on_wait(std::function<void(Stream& stream)> mark);

  /// "m", "v" and so on.
  std::vector<std::string> state_names() const;
  /// Calls `visit` with the state of every parameter, as far as this rank holds it. The tensors may
  /// be read and written. Valid after `allocate`.
  using StateVisitor = std::function<void(const StatePiece& piece)>;
  void visit_state(const StateVisitor& visit) const;
  /// The guard's windows, which are state too. Both wait for queued work.
  StepGuard read_guard(Stream& stream) const;
  void write_guard(Stream& stream, const StepGuard& guard);

 protected:
  using StateId = std::size_t;

  /// parameters: planned, with gradients, for as many ranks as there are. Throws a config error for
  /// options out of range.
  Optimizer(const ParameterSet& parameters, const GuardOptions& guard, const Sharing& sharing = {});
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  /// Declares one f32 value per parameter element; zero at the start. For constructors.
  StateId declare_state(std::string name);

  /// What this rank updates, in storage order.
  const std::vector<UpdateRange>& ranges() const { return ranges_; }
  // Views of a range, (count).
  Tensor values(const UpdateRange& range) const;
  Tensor gradients(const UpdateRange& range) const;
  Tensor state(StateId id, const UpdateRange& range) const;

 private:
  /// Fills state that does not start at zero; called by `start`.
  virtual void start_state(Stream& /*stream*/) {}
  /// Updates values and state of consecutive elements of `ranges`. A step calls it once with all of
  /// them; with ZeRO-1 first with those of bucket 0, which is sent while the others are updated.
  /// Changes nothing where block->skip is set.
  virtual void update(Stream& stream, std::span<const UpdateRange> part,
                      const StepBlock* block /*device*/) = 0;

  struct State {
    std::string name;
    std::vector<Arena::Id> segments;  // one per bucket, (size of what this rank holds) f32
  };
  void update_all(Stream& stream, const StepBlock* block /*device*/);
  Tensor guard_bytes() const;
  /// First element and size of the part of a bucket whose state this rank holds.
  std::int64_t held_begin(std::size_t bucket) const;
  std::int64_t held_size(std::size_t bucket) const;

  const ParameterSet* parameters_;
  GuardOptions guard_options_;
  Sharing sharing_;
  std::vector<UpdateRange> ranges_;
  Arena arena_;
  std::shared_ptr<Exchange> exchange_;  ///< null with one rank; hooks of a model know it too
  Arena::Id partials_id_;
  Arena::Id guard_id_;
  std::vector<State> states_;
  bool started_ = false;
};

}  // namespace llmc
