#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "llmc/comm/process_group.h"
#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// The processes (ranks) that train together. Collectives are queued on the stream like any op and
/// must be called by all ranks in the same order. Counts are 64-bit and may be zero. Reductions
/// take f32 and bf16 and give all ranks the same bits, the same in every run with this number of
/// ranks; they add in fp32 in order of rank, but NCCL in an order of its own, and it rounds partial
/// sums of bf16. The others move elements of any dtype. Wrong arguments are input errors, failures
/// between processes comm errors that name the rank.
///
/// The build's LLMC_COMM names the folder of src/comm whose `open` is compiled in. An
/// implementation overrides the private functions; their arguments have been checked.
class Communicator {
 public:
  /// The ranks of this group, each on its device. A group takes part in one Communicator.
  static std::unique_ptr<Communicator> open(const Device& device,
                                            std::shared_ptr<ProcessGroup> processes);
  /// The ranks this process was started with.
  static std::unique_ptr<Communicator> open(const Device& device, const StartUp& options = {});
  virtual ~Communicator() = default;

  virtual std::string_view name() const = 0;
  /// 0 to size() − 1.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// values = sum over ranks. values: (n).
  void all_reduce(Stream& stream, const Tensor& values);
  /// out = this rank's slice of the sum over ranks. out: (n); in: (size · n). out may be that slice
  /// of in, whose other elements stay as they are.
  void reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in);
  /// out = the in of every rank, in order of rank. out: (size · n); in: (n), which may be this
  /// rank's slice of out.
  void all_gather(Stream& stream, const Tensor& out, const Tensor& in);
  /// values = those of rank `root`. values: (n).
  void broadcast(Stream& stream, const Tensor& values, int root);
  /// Returns when every rank has called it and the stream's work is done.
  virtual void barrier(Stream& stream) = 0;

  /// The collectives called between the two, on one stream, may start together at group_end; until
  /// then none of their tensors may be read or written. Groups do not nest. CommGroup does both.
  virtual void group_begin() {}
  virtual void group_end() {}

  /// Device memory of its own, as far as it decides on that: NCCL has more.
  virtual std::size_t memory_bytes() const { return 0; }
  /// The same for so many ranks of one machine, before there are any.
  static std::size_t planned_memory(int ranks);

  /// Throws the error that says which other rank has failed, if one has: see ProcessGroup::check.
  /// Collectives do so too; this is for those who wait for results of earlier ones.
  virtual void check() const {}
  /// Tells the other ranks that this one gives up, so that none waits for it. Errors that pass
  /// through the owner of the Communicator do this by themselves, but cannot say why.
  virtual void give_up(const std::exception& /*why*/) noexcept {}

 private:
  virtual void do_all_reduce(Stream& stream, const Tensor& values) = 0;
  virtual void do_reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in) = 0;
  virtual void do_all_gather(Stream& stream, const Tensor& out, const Tensor& in) = 0;
  virtual void do_broadcast(Stream& stream, const Tensor& values, int root) = 0;
};

/// A group of collectives for as long as it lives.
class CommGroup {
 public:
  explicit CommGroup(Communicator& comm) : comm_(comm) { comm_.group_begin(); }
  /// Throws what starting the collectives failed with, unless an error is on its way already.
  ~CommGroup() noexcept(false);
  CommGroup(const CommGroup&) = delete;
  CommGroup& operator=(const CommGroup&) = delete;

 private:
  Communicator& comm_;
};

}  // namespace llmc
