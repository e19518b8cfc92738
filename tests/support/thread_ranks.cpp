#include "support/thread_ranks.h"

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/sum_in_order.h"
#include "llmc/core/error.h"

namespace llmc::testing {
namespace {

/// What the threads share: each rank's elements of the collective under way, and a barrier.
class Meeting {
 public:
  explicit Meeting(int ranks) : bytes_(static_cast<std::size_t>(ranks)), ranks_(ranks) {}

  int ranks() const { return ranks_; }
  std::vector<std::byte>& bytes(int rank) { return bytes_[static_cast<std::size_t>(rank)]; }

  void wait() {
    std::unique_lock lock(mutex_);
    check();
    if (left_ >= 0) fail_early(left_);
    const int round = round_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round || failed_ >= 0 || left_ >= 0; });
    if (round_ != round) return;
    check();
    fail_early(left_);
  }

  void leave(int rank) {
    const std::scoped_lock lock(mutex_);
    left_ = rank;
    changed_.notify_all();
  }

  void fail_rank(int rank, std::string why) {
    const std::scoped_lock lock(mutex_);
    if (failed_ >= 0) return;
    failed_ = rank;
    why_ = std::move(why);
    changed_.notify_all();
  }

  void check_failed() {
    const std::scoped_lock lock(mutex_);
    check();
  }

 private:
  void check() const {
    if (failed_ >= 0) fail(ErrorKind::kComm, "comm", "rank ", failed_, " failed: ", why_);
  }

  [[noreturn]] static void fail_early(int rank) {
    fail(ErrorKind::kComm, "comm", "rank ", rank, " left before a collective of the others");
  }

  std::vector<std::vector<std::byte>> bytes_;
  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0, round_ = 0, failed_ = -1, left_ = -1;
  std::string why_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return meeting_.ranks(); }
  void barrier(Stream& stream) override {
    stream.synchronize();
    meeting_.wait();
  }
  void check() const override { meeting_.check_failed(); }
  void give_up(const std::exception& why) noexcept override {
    meeting_.fail_rank(rank_, why.what());
  }

 private:
  void do_all_reduce(Stream& stream, const Tensor& values) override {
    show(stream, values);
    take_sum(stream, values, 0);
  }
  void do_reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in) override {
    show(stream, in);
    take_sum(stream, out, static_cast<std::size_t>(rank_) * out.bytes());
  }
  void do_all_gather(Stream& stream, const Tensor& out, const Tensor& in) override {
    show(stream, in);
    std::vector<std::byte> all;
    for (int r = 0; r < size(); ++r) {
      all.insert(all.end(), meeting_.bytes(r).begin(), meeting_.bytes(r).end());
    }
    finish(stream, out, all.data());
  }
  void do_broadcast(Stream& stream, const Tensor& values, int root) override {
    show(stream, values);
    finish(stream, values, meeting_.bytes(root).data());
  }

  void show(Stream& stream, const Tensor& in) {
    meeting_.bytes(rank_).resize(in.bytes());
    copy_to_host(stream, meeting_.bytes(rank_).data(), in);
    meeting_.wait();
  }
  void finish(Stream& stream, const Tensor& out, const void* values) {
    copy_from_host(stream, out, values);
    meeting_.wait();
  }
  void take_sum(Stream& stream, const Tensor& out, std::size_t offset) {
    if (out.dtype() == DType::kF32) return take_sum_of<float>(stream, out, offset);
    take_sum_of<bf16>(stream, out, offset);
  }
  template <class T>
  void take_sum_of(Stream& stream, const Tensor& out, std::size_t offset) {
    const auto part = [&](int r) {
      return reinterpret_cast<const T*>(meeting_.bytes(r).data() + offset);
    };
    std::vector<T> sum(static_cast<std::size_t>(out.numel()));
    sum_in_order(sum.data(), part, size(), out.numel());
    finish(stream, out, sum.data());
  }

  Meeting& meeting_;
  int rank_;
};

}  // namespace

void run_thread_ranks(int ranks, const std::function<void(Communicator& comm)>& body) {
  Meeting meeting(ranks);
  std::exception_ptr first;
  std::mutex first_mutex;
  const auto run = [&](int rank) {
    ThreadCommunicator comm(meeting, rank);
    try {
      body(comm);
      meeting.leave(rank);
      return;
    } catch (...) {
      const std::scoped_lock lock(first_mutex);
      if (!first) first = std::current_exception();
    }
    try {
      std::rethrow_exception(first);
    } catch (const std::exception& error) {
      comm.give_up(error);
    } catch (...) {
      comm.give_up(std::runtime_error("an unknown exception"));
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(run, r);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace llmc::testing
