#include "llmc/comm/communicator.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "comm/nccl/copy_communicator.h"
#include "comm/process_group_impl.h"
#include "comm/single_communicator.h"
#include "core/cuda/device_impl.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  return dtype == DType::kF32 ? ncclFloat32 : ncclBfloat16;
}

/// Collectives are queued on the caller's stream. When a rank fails, kernels that wait for it never
/// end by themselves, and so neither would a wait for the stream: the group's watching thread then
/// aborts them.
class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const Device& device, std::shared_ptr<ProcessGroup> processes)
      : processes_(std::move(processes)), ordinal_(device.impl().ordinal), flag_(device, 1) {
    ncclUniqueId id = {};
    if (rank() == 0) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const std::string shared = processes_->share({reinterpret_cast<const char*>(&id), sizeof id});
    if (shared.size() != sizeof id) {
      fail(ErrorKind::kComm, "comm", "nccl: expected rank 0 to share ", sizeof id, " bytes, got ",
           shared.size());
    }
    std::memcpy(&id, shared.data(), sizeof id);
    const cuda::CurrentDevice current(ordinal_);
    ncclComm_t comm = nullptr;
    const ncclResult_t status = ncclCommInitRank(&comm, size(), id, rank());
    processes_->check();
    check_nccl(status, "ncclCommInitRank");
    comm_ = comm;
    processes_->on_failure([this] { abort_collectives(); });
  }
  ~NcclCommunicator() override {
    processes_->on_failure({});
    if (comm_ == nullptr) return;
    const cuda::CurrentDevice current(ordinal_);
    // Destroying waits for what is queued, which other ranks may never join after an error here.
    if (std::uncaught_exceptions() > errors_) {
      ncclCommAbort(comm_);
    } else {
      ncclCommDestroy(comm_);
    }
  }

  std::string_view name() const override { return "nccl"; }
  int rank() const override { return processes_->rank(); }
  int size() const override { return processes_->size(); }

  void barrier(Stream& stream) override {
    meet(stream);
    stream.synchronize();
    check();
  }
  void group_begin() override {
    call("ncclGroupStart", [](ncclComm_t) { return ncclGroupStart(); });
  }
  void group_end() override {
    call("ncclGroupEnd", [](ncclComm_t) { return ncclGroupEnd(); });
  }

  void check() const override {
    processes_->check();
    const std::unique_lock lock(mutex_);
    if (comm_ == nullptr) return;
    ncclResult_t status = ncclSuccess;
    ncclCommGetAsyncError(comm_, &status);
    check_nccl(status, "an exchange between ranks");
  }
  void give_up(const std::exception& why) noexcept override { processes_->give_up(why); }

 private:
  void do_all_reduce(Stream& stream, const Tensor& values) override {
    collective("ncclAllReduce", [&](ncclComm_t comm) {
      return ncclAllReduce(values.raw(), values.raw(), elements(values), nccl_type(values.dtype()),
                           ncclSum, comm, stream.impl().stream);
    });
  }
  void do_reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in) override {
    collective("ncclReduceScatter", [&](ncclComm_t comm) {
      return ncclReduceScatter(in.raw(), out.raw(), elements(out), nccl_type(in.dtype()), ncclSum,
                               comm, stream.impl().stream);
    });
  }
  void do_all_gather(Stream& stream, const Tensor& out, const Tensor& in) override {
    collective("ncclAllGather", [&](ncclComm_t comm) {
      return ncclAllGather(in.raw(), out.raw(), in.bytes(), ncclUint8, comm, stream.impl().stream);
    });
  }
  void do_broadcast(Stream& stream, const Tensor& values, int root) override {
    collective("ncclBroadcast", [&](ncclComm_t comm) {
      return ncclBroadcast(values.raw(), values.raw(), values.bytes(), ncclUint8, root, comm,
                           stream.impl().stream);
    });
  }

  void meet(Stream& stream) {
    collective("ncclAllReduce", [&](ncclComm_t comm) {
      return ncclAllReduce(flag_.data(), flag_.data(), 1, ncclUint8, ncclSum, comm,
                           stream.impl().stream);
    });
  }

  static std::size_t elements(const Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel());
  }

  static void check_nccl(ncclResult_t status, std::string_view what) {
    if (status == ncclSuccess) return;
    fail(ErrorKind::kComm, "comm", what, ": ", ncclGetErrorString(status), "; ",
         ncclGetLastError(nullptr));
  }

  template <class Queue>
  void collective(std::string_view what, const Queue& queue) {
    processes_->count_call();
    call(what, queue);
  }

  template <class Queue>
  void call(std::string_view what, const Queue& queue) {
    const cuda::CurrentDevice current(ordinal_);
    ncclResult_t status = ncclSuccess;
    {
      const std::unique_lock lock(mutex_);
      if (const ncclComm_t comm = comm_) status = queue(comm);
    }
    processes_->check();  // says which rank, where NCCL only knows that one failed
    check_nccl(status, what);
  }

  void abort_collectives() noexcept {
    // A call that holds the mutex for so long waits for the rank that failed; aborting ends it.
    std::unique_lock lock(mutex_, std::defer_lock);
    (void)lock.try_lock_for(std::chrono::seconds(2));
    const ncclComm_t comm = comm_.exchange(nullptr);
    if (comm == nullptr) return;
    const cuda::CurrentDevice current(ordinal_);
    ncclCommAbort(comm);
  }

  std::shared_ptr<ProcessGroup> processes_;
  const int ordinal_;
  const int errors_ = std::uncaught_exceptions();
  Buffer flag_;
  std::atomic<ncclComm_t> comm_{nullptr};
  mutable std::timed_mutex mutex_;
};

}  // namespace

std::string_view start_up_methods() {
  return has_mpi() ? "mpi tcp file" : "tcp file";
}

std::string_view transports() {
  return "auto copy nccl";
}

std::size_t Communicator::planned_memory(int ranks) {
  return copy_communicator_memory(ranks);
}

std::unique_ptr<Communicator> Communicator::open(const Device& device,
                                                 std::shared_ptr<ProcessGroup> processes) {
  if (processes->size() == 1) return single_communicator();
  if (processes->transport() != "nccl") {
    if (auto copying = copy_communicator(device, processes)) return copying;
  }
  return std::make_unique<NcclCommunicator>(device, std::move(processes));
}

}  // namespace llmc
