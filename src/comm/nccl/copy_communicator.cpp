#include "comm/nccl/copy_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/stream_waits.h"
#include "comm/nccl/sum_parts.h"
#include "comm/process_group_impl.h"
#include "core/cuda/device_impl.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc {
namespace {

/// Where other ranks' data land, of each rank. Two rounds are under way at once, in halves.
constexpr std::size_t kLandingBytes = std::size_t{128} << 20;
constexpr int kHalves = 2;
/// Pieces begin at multiples of this, which every access of a kernel divides.
constexpr std::size_t kPieceAlignment = 256;
/// For the first exchange, which shows whether the GPUs reach each other.
constexpr auto kTrialTime = std::chrono::seconds(20);

/// What a flag holds after a round: one of two bits in turn, for each half its own flag. A flag
/// with all bits set ends every wait for it.
constexpr std::uint32_t bit_of(std::uint32_t round) {
  return 1u << (round / kHalves % 2);
}

/// The memory of a rank that the others write into: flags, then the landing place.
struct Reached {
  /// By half and rank: the last round whose data of that rank are here, and the last one whose data
  /// of this rank it has used.
  std::uint32_t arrived[kHalves][kMostParts];
  std::uint32_t used[kHalves][kMostParts];
  std::uint32_t bits[2];  ///< 1 and 2: what is copied into flags
  alignas(kPieceAlignment) std::byte landing[kLandingBytes];
};
constexpr std::size_t kFlagBytes = offsetof(Reached, bits);

/// Another rank's memory as this process sees it.
class Mapped {
 public:
  explicit Mapped(const cudaIpcMemHandle_t& handle) {
    void* address = nullptr;
    cuda::check(cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess),
                "memory of another rank's GPU");
    memory_ = static_cast<Reached*>(address);
  }
  ~Mapped() {
    if (memory_ != nullptr) cudaIpcCloseMemHandle(memory_);
  }
  Mapped(Mapped&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  Mapped& operator=(Mapped&&) = delete;

  Reached* get() const { return memory_; }

 private:
  Reached* memory_ = nullptr;
};

/// Collectives are made of rounds. In each, a rank copies something to every other one, says that
/// it is there, waits for what comes from the others, uses it, and says that it has been used: the
/// place is needed again two rounds later. All of that is queued on the stream.
class CopyCommunicator : public Communicator {
 public:
  CopyCommunicator(const Device& device, std::shared_ptr<ProcessGroup> processes)
      : processes_(std::move(processes)),
        device_(device),
        memory_(std::make_shared<Buffer>(device, sizeof(Reached))),
        releasing_(Stream::beside(device)),
        last_(device) {
    const std::size_t others = static_cast<std::size_t>(size()) - 1;
    piece_bytes_ = kLandingBytes / kHalves / others / kPieceAlignment * kPieceAlignment;
    processes_->keep(memory_);
    constexpr std::uint32_t kBits[] = {1, 2};
    copy_from_host(releasing_,
                   Tensor(static_cast<std::byte*>(memory_->data()) + offsetof(Reached, bits),
                          DType::kU8, {sizeof kBits}),
                   kBits);
    releasing_.synchronize();
  }

  ~CopyCommunicator() override {
    const bool failed = std::uncaught_exceptions() > errors_ || processes_->impl().watch.failed();
    try {
      const cuda::CurrentDevice current(ordinal());
      if (failed) keep_released();
      Stream waiting = Stream::beside(device_);
      last_.hold(waiting);
      waiting.synchronize();
      mapped_.clear();
    } catch (const std::exception&) {  // a GPU in error has nothing under way
    }
    processes_->on_failure({});
    ends_ = true;
    if (releaser_.joinable()) releaser_.join();
  }

  /// The name of this rank's memory for other processes; empty if it can have none.
  std::string handle() const {
    cudaIpcMemHandle_t handle{};
    const cuda::CurrentDevice current(ordinal());
    if (cudaIpcGetMemHandle(&handle, memory_->data()) != cudaSuccess) {
      cudaGetLastError();
      return {};
    }
    return {reinterpret_cast<const char*>(&handle), sizeof handle};
  }

  /// handles: of all ranks. Throws where one cannot be reached.
  void reach(const std::vector<std::string>& handles) {
    const cuda::CurrentDevice current(ordinal());
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) {
        ranks_.push_back(static_cast<Reached*>(memory_->data()));
        continue;
      }
      cudaIpcMemHandle_t handle{};
      const std::string& bytes = handles[static_cast<std::size_t>(r)];
      if (bytes.size() != sizeof handle) {
        fail(ErrorKind::kComm, "comm", "rank ", r, " has no memory that others reach");
      }
      std::memcpy(&handle, bytes.data(), sizeof handle);
      ranks_.push_back(mapped_.emplace_back(handle).get());
    }
  }

  /// One exchange with a deadline; throws where it does not come out right.
  void try_out() {
    const cuda::CurrentDevice current(ordinal());
    Stream stream = Stream::beside(device_);
    const Buffer memory(device_, sizeof(float));
    const Tensor value(memory.data(), DType::kF32, {1});
    float sum = static_cast<float>(rank() + 1);
    copy_from_host(stream, value, &sum);
    do_all_reduce(stream, value);
    const auto deadline = std::chrono::steady_clock::now() + kTrialTime;
    while (cudaStreamQuery(stream.impl().stream) == cudaErrorNotReady) {
      cudaGetLastError();  // that was no error
      if (std::chrono::steady_clock::now() > deadline) {
        release();
        fail(ErrorKind::kComm, "comm", "what GPUs write into each other's memory does not arrive");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    copy_to_host(stream, &sum, value);
    const float expected = static_cast<float>(size() * (size() + 1)) / 2;
    if (sum != expected) {
      fail(ErrorKind::kComm, "comm", "GPUs that write into each other's memory: expected a sum of ",
           expected, ", got ", sum);
    }
  }

  void watch() {
    processes_->on_failure([this] { keep_released(); });
  }

  std::string_view name() const override { return "copy"; }
  int rank() const override { return processes_->rank(); }
  int size() const override { return processes_->size(); }

  void barrier(Stream& stream) override {
    processes_->count_call();
    begin(stream);
    const auto nothing = [](int) -> const std::byte* { return nullptr; };
    round(stream, 0, nothing, [](const Parts&) {});
    end(stream);
    stream.synchronize();
    check();
  }
  std::size_t memory_bytes() const override { return memory_->bytes(); }
  void check() const override { processes_->check(); }
  void give_up(const std::exception& why) noexcept override { processes_->give_up(why); }

 private:
  int ordinal() const { return device_.impl().ordinal; }
  static std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.raw()); }

  void do_all_reduce(Stream& stream, const Tensor& values) override {
    std::byte* const own = bytes_of(values);
    in_pieces(stream, values.bytes(), [&](std::size_t begin, std::size_t bytes) {
      round(
          stream, bytes, [&](int) { return own + begin; },
          [&](Parts parts) {
            parts.at[rank()] = own + begin;
            add(stream, own + begin, parts, bytes, values.dtype());
          });
    });
  }

  void do_reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in) override {
    const std::size_t slice = out.bytes();
    in_pieces(stream, slice, [&](std::size_t begin, std::size_t bytes) {
      const auto piece = [&](int r) {
        return bytes_of(in) + static_cast<std::size_t>(r) * slice + begin;
      };
      round(stream, bytes, piece, [&](Parts parts) {
        parts.at[rank()] = piece(rank());
        add(stream, bytes_of(out) + begin, parts, bytes, in.dtype());
      });
    });
  }

  void do_all_gather(Stream& stream, const Tensor& out, const Tensor& in) override {
    const std::size_t slice = in.bytes();
    in_pieces(stream, slice, [&](std::size_t begin, std::size_t bytes) {
      const std::byte* const own = bytes_of(in) + begin;
      round(
          stream, bytes, [&](int) { return own; },
          [&](Parts parts) {
            parts.at[rank()] = own;
            for (int r = 0; r < size(); ++r) {
              copy_bytes(stream, bytes_of(out) + static_cast<std::size_t>(r) * slice + begin,
                         parts.at[r], bytes);
            }
          });
    });
  }

  void do_broadcast(Stream& stream, const Tensor& values, int root) override {
    in_pieces(stream, values.bytes(), [&](std::size_t begin, std::size_t bytes) {
      std::byte* const own = bytes_of(values) + begin;
      round(
          stream, bytes, [&](int) -> const std::byte* { return rank() == root ? own : nullptr; },
          [&](const Parts& parts) {
            if (rank() != root) copy_bytes(stream, own, parts.at[root], bytes);
          });
    });
  }

  template <class Piece>
  void in_pieces(Stream& stream, std::size_t bytes, const Piece& piece) {
    processes_->count_call();
    begin(stream);
    for (std::size_t at = 0; at < bytes; at += piece_bytes_) {
      piece(at, std::min(piece_bytes_, bytes - at));
    }
    end(stream);
  }

  /// Rounds follow one another, whatever streams they are on.
  void begin(Stream& stream) { last_.hold(stream); }
  void end(Stream& stream) { last_.record(stream); }

  /// source(r): what goes to rank r, or null. use(parts): queues what reads the parts that have
  /// come, by rank, the own one null.
  template <class Source, class Use>
  void round(Stream& stream, std::size_t bytes, const Source& source, const Use& use) {
    const cuda::CurrentDevice current(ordinal());
    const int me = rank();
    const std::uint32_t half = ++round_ % kHalves;
    Reached& own = *ranks_[me];
    if (round_ > kHalves) {
      for_others([&](int r) { waits_.add(&own.used[half][r], bit_of(round_ - kHalves)); });
      waits_.queue(stream.impl().stream);
    }
    for_others([&](int r) {
      const std::byte* const from = source(r);
      if (from != nullptr) copy_bytes(stream, landing(r, me), from, bytes);
    });
    for_others([&](int r) { set_flag(stream, &ranks_[r]->arrived[half][me]); });
    for_others([&](int r) { waits_.add(&own.arrived[half][r], bit_of(round_)); });
    waits_.queue(stream.impl().stream);
    Parts parts{};
    for_others([&](int r) { parts.at[r] = landing(me, r); });
    use(parts);
    for_others([&](int r) { set_flag(stream, &ranks_[r]->used[half][me]); });
  }

  /// By a copy, as it comes after the copies before it. A stream's own operation on a flag would
  /// have the GPU's running kernels finish first.
  void set_flag(Stream& stream, std::uint32_t* flag) {
    const std::uint32_t& bit = ranks_[rank()]->bits[bit_of(round_) - 1];
    copy_bytes(stream, flag, &bit, sizeof bit);
  }

  /// Each rank begins with another one, so that not all write to the same.
  template <class Each>
  void for_others(const Each& each) const {
    for (int i = 1; i < size(); ++i) each((rank() + i) % size());
  }

  /// Where, in `of`'s memory, data of rank `from` land in this round.
  std::byte* landing(int of, int from) const {
    const auto place = static_cast<std::size_t>(from < of ? from : from - 1);
    const auto half = static_cast<std::size_t>(round_ % kHalves);
    return ranks_[of]->landing + half * (kLandingBytes / kHalves) + place * piece_bytes_;
  }

  static void copy_bytes(Stream& stream, void* to, const void* from, std::size_t bytes) {
    if (to == from || bytes == 0) return;
    cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.impl().stream),
                "copy between GPUs");
  }

  void add(Stream& stream, std::byte* out, const Parts& parts, std::size_t bytes,
           DType dtype) const {
    const std::size_t elements = bytes / size_of(dtype);
    sum_parts(stream.impl().stream, out, parts, size(), static_cast<std::int64_t>(elements), dtype);
  }

  /// Ends all waits of this rank that are queued.
  void release() noexcept {
    std::byte all_set[kFlagBytes];
    std::fill(std::begin(all_set), std::end(all_set), std::byte{0xff});
    try {
      copy_from_host(releasing_, Tensor(memory_->data(), DType::kU8, {kFlagBytes}), all_set);
      releasing_.synchronize();
    } catch (const std::exception& error) {
      log(LogLevel::kError, concat("cannot end the waits for other ranks: ", error.what()));
    }
  }

  /// Does so until the end, as ranks that go on for a while still set flags.
  void keep_released() {
    std::call_once(released_, [this] {
      releaser_ = std::thread([this] {
        while (!ends_) {
          release();
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
      });
    });
  }

  std::shared_ptr<ProcessGroup> processes_;
  const Device device_;
  const int errors_ = std::uncaught_exceptions();
  std::shared_ptr<Buffer> memory_;
  std::vector<Mapped> mapped_;
  std::vector<Reached*> ranks_;  ///< device memory, by rank
  std::size_t piece_bytes_ = 0;
  StreamWaits waits_;
  Stream releasing_;
  std::once_flag released_;
  std::thread releaser_;
  std::atomic<bool> ends_ = false;
  StreamEvent last_;  ///< the end of the last collective
  std::uint32_t round_ = 0;
};

/// What all ranks say in turn; the first one that has something to say decides for all.
std::string first_objection(ProcessGroup& processes, const std::string& own) {
  for (const std::string& objection : processes.gather(own)) {
    if (!objection.empty()) return objection;
  }
  return {};
}

std::string objection_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

std::size_t copy_communicator_memory(int ranks) {
  return ranks > 1 && ranks <= kMostParts ? sizeof(Reached) : 0;
}

std::unique_ptr<Communicator> copy_communicator(const Device& device,
                                                const std::shared_ptr<ProcessGroup>& processes) {
  std::unique_ptr<CopyCommunicator> comm;
  std::string objection;
  if (processes->local_size() != processes->size()) {
    objection = "the ranks are on several machines";
  } else if (processes->size() > kMostParts) {
    objection = concat("there are more than ", kMostParts, " ranks");
  } else {
    objection = first_objection(*processes, objection_of([&] {
      comm = std::make_unique<CopyCommunicator>(device, processes);
    }));
    if (objection.empty()) {
      const std::vector<std::string> handles = processes->gather(comm->handle());
      objection = first_objection(*processes, objection_of([&] { comm->reach(handles); }));
    }
    if (objection.empty()) {
      objection = first_objection(*processes, objection_of([&] { comm->try_out(); }));
    }
  }
  if (objection.empty()) {
    comm->watch();
    return comm;
  }
  if (processes->transport() == "copy") {
    fail(ErrorKind::kComm, "comm", "comm_transport = copy: ", objection);
  }
  comm.reset();
  processes->keep({});
  return nullptr;
}

}  // namespace llmc
