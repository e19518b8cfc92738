#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "llmc/core/arena.h"
#include "llmc/core/device.h"
#include "llmc/nn/parameters.h"
#include "llmc/ops/step.h"
#include "llmc/optim/optimizer.h"

namespace llmc {

/// Norm blocks of a bucket that hold parameters; those behind them pad it to equal slices.
std::int64_t norm_blocks(const ParameterSet& parameters, std::size_t bucket);

/// What one optimizer step tells the other ranks and hears from them, on a Stream of its own: the
/// sums of the gradients, bucket by bucket; losses, counts and partial norms, all in one message;
/// and the updated parameters, or in stage 0 the sums of all. Nothing here waits for the device.
class Exchange {
 public:
  /// Plans. sharing.comm has more than one rank.
  Exchange(const ParameterSet& parameters, const Sharing& sharing, Arena& arena);
  /// Takes the memory once `arena` is allocated.
  void open(const Device& device, const Arena& arena);

  /// The part of a bucket that this rank owns.
  std::int64_t slice_begin(std::size_t bucket) const;
  std::int64_t slice_size(std::size_t bucket) const;

  /// `mark` is called on either side of whatever makes the work of `compute` wait.
  void on_wait(std::function<void(Stream& compute)> mark) { mark_wait_ = std::move(mark); }
  /// Someone calls bucket_needed from now on.
  void attach() { attached_ = true; }
  /// The bucket's gradients are what is queued on `compute`: sums them over the ranks. Where it is
  /// not called, sum_up does it.
  void bucket_ready(Stream& compute, std::size_t bucket);
  /// What is queued on `compute` from now on reads the bucket's parameters.
  void bucket_needed(Stream& compute, std::size_t bucket);
  void all_needed(Stream& compute);

  /// Makes sums and stop flag in the block those of all ranks, and the partials those of the sums
  /// of all gradients, in the order of the table.
  void sum_up(Stream& compute, StepBlock* block /*device*/, const Tensor& partials);
  /// Stage 1: sends the bucket's slices of the parameters, which the work of `compute` has updated.
  void send_parameters(Stream& compute, std::size_t bucket);

 private:
  /// Blocks of kNormBlock elements in a slice.
  std::int64_t blocks(std::size_t bucket) const { return slice_size(bucket) / kNormBlock; }
  /// What is exchanged next waits for the work of `compute`, or the other way round.
  void hold_exchange(Stream& compute);
  void hold_compute(Stream& compute);
  template <class Wait>
  void marked(Stream& compute, const Wait& wait);
  void await(Stream& compute, std::size_t bucket);
  void sum_gradients(std::size_t bucket);
  void make_order(const Tensor& order);

  const ParameterSet* parameters_;
  Sharing sharing_;
  std::int64_t record_bytes_;
  std::vector<std::int64_t> first_partial_;  ///< of each bucket, in this rank's record
  Arena::Id records_id_, order_id_, wire_id_ = 0;

  std::optional<Stream> stream_;      ///< from `open` on
  std::optional<StreamEvent> mark_;   ///< used again and again
  std::vector<StreamEvent> arrived_;  ///< parameters of each bucket
  std::vector<bool> summed_, coming_;
  Tensor records_;  ///< (ranks, record_bytes) u8
  Tensor record_;   ///< this rank's
  Tensor own_partials_;
  Tensor order_;  ///< (blocks of the table) i32, see combine_ranks
  Tensor wire_;   ///< (largest bucket) bf16; empty where sums travel in fp32
  bool attached_ = false;
  std::function<void(Stream&)> mark_wait_;
};

}  // namespace llmc
