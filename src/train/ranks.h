#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "llmc/comm/communicator.h"
#include "llmc/nn/transformer.h"

namespace llmc {

/// The text that rank 0 passes.
std::string text_of_rank_0(Communicator& comm, Stream& stream, const std::string& text);

/// Gives all ranks the algorithms for matrix products that rank 0 finds fastest, where the device
/// times them: their roundings differ. Rank 0 tries a step of so many micro-steps of B·T tokens, so
/// the model's hooks must not exchange anything yet; it leaves nothing but gradients and sums,
/// which the next step begins anew. All ranks must call it.
void share_products(Communicator& comm, Transformer& model, std::int64_t B, std::int64_t T,
                    std::int64_t micro_steps);

/// The first rank on which `folder` is not the one that rank 0 sees, which must be able to write
/// there; none if all see that one. The answer is the same on all ranks, and nothing of the
/// question stays in the folder. Waits for so many seconds for a file system that shows files late.
/// All ranks must call it.
std::optional<int> rank_without_folder(Communicator& comm, Stream& stream,
                                       const std::filesystem::path& folder, double patience_s = 20);

/// Stands for ranks that are only planned with: rank 0 of so many, which can exchange nothing.
class PlannedRanks : public Communicator {
 public:
  explicit PlannedRanks(int size) : size_(size) {}
  std::string_view name() const override { return "planned"; }
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::size_t memory_bytes() const override { return planned_memory(size_); }
  void barrier(Stream&) override { refuse(); }

 private:
  void do_all_reduce(Stream&, const Tensor&) override { refuse(); }
  void do_reduce_scatter(Stream&, const Tensor&, const Tensor&) override { refuse(); }
  void do_all_gather(Stream&, const Tensor&, const Tensor&) override { refuse(); }
  void do_broadcast(Stream&, const Tensor&, int) override { refuse(); }
  [[noreturn]] static void refuse();

  int size_;
};

}  // namespace llmc
