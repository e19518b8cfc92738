#include "llmc/comm/communicator.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_check.h"
#include "comm/mpi/session.h"
#include "comm/process_group_impl.h"
#include "comm/single_communicator.h"
#include "comm/sum_in_order.h"
#include "core/cpu/parallel.h"

namespace llmc {
namespace {

/// What a collective moves at once, over all ranks, and the memory it keeps for that. A message
/// stays far below the 2^31 elements that MPI can count.
constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

/// Of that, what comes from each rank.
constexpr std::int64_t slice_bytes(int ranks) {
  return std::max<std::int64_t>(kPieceBytes / ranks / 64 * 64, 4096);
}

std::byte* at(const Tensor& tensor, std::int64_t element) {
  return static_cast<std::byte*>(tensor.raw()) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

/// Sums are exchanged as they are and added by the owner of a slice in order of rank, so that they
/// do not depend on an algorithm that MPI chooses.
class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(std::shared_ptr<ProcessGroup> processes)
      : processes_(std::move(processes)),
        rank_(processes_->rank()),
        size_(processes_->size()),
        slice_bytes_(slice_bytes(size_)),
        received_(static_cast<std::size_t>(slice_bytes_ * size_)),
        comm_(static_cast<const WorldSession&>(*processes_->impl().session).world()) {
    requests_.reserve(2 * static_cast<std::size_t>(size_));
  }
  std::string_view name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier(Stream& stream) override {
    const std::scoped_lock lock(mutex_);
    processes_->count_call();
    stream.synchronize();
    check_mpi(MPI_Ibarrier(comm_, &requests_.emplace_back()), "MPI_Ibarrier");
    wait_all();
  }
  std::size_t memory_bytes() const override { return received_.size(); }
  void check() const override { processes_->check(); }
  void give_up(const std::exception& why) noexcept override { processes_->give_up(why); }

 private:
  void do_all_reduce(Stream& stream, const Tensor& values) override {
    const std::scoped_lock lock(mutex_);
    processes_->count_call();
    const std::int64_t piece = elements(values) * size_;
    for (std::int64_t begin = 0; begin < values.numel(); begin += piece) {
      const std::int64_t count = std::min(piece, values.numel() - begin);
      const auto cut = [&](int r) { return begin + count * r / size_; };
      const auto length = [&](int r) { return cut(r + 1) - cut(r); };
      exchange(values, cut, length);
      add(stream, at(values, cut(rank_)), at(values, cut(rank_)), values.dtype(), length(rank_));
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        receive(at(values, cut(r)), length(r), values.dtype(), r);
        send(at(values, cut(rank_)), length(rank_), values.dtype(), r);
      }
      wait_all();
    }
  }

  void do_reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in) override {
    const std::scoped_lock lock(mutex_);
    processes_->count_call();
    const std::int64_t slice = out.numel(), piece = elements(in);
    for (std::int64_t begin = 0; begin < slice; begin += piece) {
      const std::int64_t count = std::min(piece, slice - begin);
      const auto cut = [&](int r) { return r * slice + begin; };
      exchange(in, cut, [&](int) { return count; });
      add(stream, at(out, begin), at(in, cut(rank_)), in.dtype(), count);
    }
  }

  void do_all_gather(Stream& stream, const Tensor& out, const Tensor& in) override {
    const std::scoped_lock lock(mutex_);
    processes_->count_call();
    const std::int64_t slice = in.numel(), piece = elements(in);
    const Tensor mine = out.flat(rank_ * slice, slice);
    if (mine.raw() != in.raw()) copy(stream, mine, in.flat(0, slice));
    for (std::int64_t begin = 0; begin < slice; begin += piece) {
      const std::int64_t count = std::min(piece, slice - begin);
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        receive(at(out, r * slice + begin), count, out.dtype(), r);
        send(at(mine, begin), count, out.dtype(), r);
      }
      wait_all();
    }
  }

  void do_broadcast(Stream& /*stream*/, const Tensor& values, int root) override {
    const std::scoped_lock lock(mutex_);
    processes_->count_call();
    const auto bytes = static_cast<std::int64_t>(values.bytes());
    for (std::int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
      check_mpi(MPI_Ibcast(static_cast<std::byte*>(values.raw()) + begin,
                           static_cast<int>(std::min(kPieceBytes, bytes - begin)), MPI_BYTE, root,
                           comm_, &requests_.emplace_back()),
                "MPI_Ibcast");
      wait_all();
    }
  }

  /// Elements of a slice that are moved at once.
  std::int64_t elements(const Tensor& tensor) const {
    return slice_bytes_ / static_cast<std::int64_t>(size_of(tensor.dtype()));
  }
  std::byte* received(int rank) { return received_.data() + rank * slice_bytes_; }

  void send(const std::byte* from, std::int64_t count, DType dtype, int to) {
    check_mpi(MPI_Isend(from, static_cast<int>(count * static_cast<std::int64_t>(size_of(dtype))),
                        MPI_BYTE, to, 0, comm_, &requests_.emplace_back()),
              "MPI_Isend");
  }
  void receive(std::byte* to, std::int64_t count, DType dtype, int from) {
    check_mpi(MPI_Irecv(to, static_cast<int>(count * static_cast<std::int64_t>(size_of(dtype))),
                        MPI_BYTE, from, 0, comm_, &requests_.emplace_back()),
              "MPI_Irecv");
  }

  /// Gives each rank its part of `in`, and takes the others' versions of the own one.
  template <class Cut, class Length>
  void exchange(const Tensor& in, const Cut& cut, const Length& length) {
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      receive(received(r), length(rank_), in.dtype(), r);
      send(at(in, cut(r)), length(r), in.dtype(), r);
    }
    wait_all();
  }

  /// out = own version and the received ones, added in order of rank.
  void add(Stream& stream, std::byte* out, const std::byte* own, DType dtype, std::int64_t count) {
    if (dtype == DType::kF32) return add_as<float>(stream, out, own, count);
    add_as<bf16>(stream, out, own, count);
  }
  template <class T>
  void add_as(Stream& stream, std::byte* out, const std::byte* own, std::int64_t count) {
    constexpr std::int64_t kSerial = 1 << 14;
    cpu::parallel_for(
        stream.impl(), count,
        [&](std::int64_t begin, std::int64_t end) {
          const auto part = [&](int r) {
            return reinterpret_cast<const T*>(r == rank_ ? own : received(r)) + begin;
          };
          sum_in_order(reinterpret_cast<T*>(out) + begin, part, size_, end - begin);
        },
        kSerial);
  }

  /// Waits for all messages under way, but not for a rank that has failed.
  void wait_all() {
    for (int round = 0;; ++round) {
      int done = 0;
      check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                            MPI_STATUSES_IGNORE),
                "an exchange between ranks");
      if (done != 0) break;
      if (round < 100) continue;
      processes_->check();
      if (round < 2000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    requests_.clear();
  }

  std::shared_ptr<ProcessGroup> processes_;
  const int rank_, size_;
  const std::int64_t slice_bytes_;
  std::vector<std::byte> received_;
  std::vector<MPI_Request> requests_;
  MPI_Comm comm_;
  std::mutex mutex_;
};

}  // namespace

std::string_view start_up_methods() {
  return "mpi";
}

std::string_view transports() {
  return "auto";
}

std::size_t Communicator::planned_memory(int ranks) {
  return ranks == 1 ? 0 : static_cast<std::size_t>(slice_bytes(ranks) * ranks);
}

std::unique_ptr<Communicator> Communicator::open(const Device& /*device*/,
                                                 std::shared_ptr<ProcessGroup> processes) {
  if (processes->size() == 1) return single_communicator();
  return std::make_unique<MpiCommunicator>(std::move(processes));
}

}  // namespace llmc
