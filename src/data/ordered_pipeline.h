#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace llmc {

/// Reads items one after the other, works on them in several threads, and writes the results in the
/// order of the items, so that what is written does not depend on the number of threads.
///
/// There are no reader and writer threads: whichever thread is free reads the next item, and
/// whichever finishes the one that is due writes it and all finished ones behind it. Reading pauses
/// while items of `budget` or more are between reading and writing.
template <class Item, class Result>
class OrderedPipeline {
 public:
  OrderedPipeline(int threads, std::int64_t budget) : threads_(threads), budget_(budget) {}

  /// read(Item&) fills in the next item or returns false at the end, weight(item) is what it counts
  /// against the budget, work(item) returns its Result, and write(result) returns false to stop.
  /// Each of read and write is called by one thread at a time. The first error in the order of
  /// items is thrown again here, after all threads have ended; nothing behind it is written.
  template <class Read, class Weight, class Work, class Write>
  void run(const Read& read, const Weight& weight, const Work& work, const Write& write) {
    const auto loop = [&] {
      Task task;
      while (take(task, read, weight)) {
        if (!task.outcome.error) {
          try {
            task.outcome.result = work(task.item);
          } catch (...) {
            task.outcome.error = std::current_exception();
          }
        }
        task.item = Item();
        deliver(task.number, std::move(task.outcome), write);
        task.outcome = Outcome();
      }
    };
    std::vector<std::thread> others;
    try {
      for (int i = 1; i < threads_; ++i) others.emplace_back(loop);
    } catch (const std::system_error&) {
      // Fewer threads do the same work.
    }
    loop();
    for (std::thread& thread : others) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Outcome {
    Result result;
    std::exception_ptr error;
    std::int64_t weight = 0;
  };

  struct Task {
    std::int64_t number = 0;
    Item item;
    Outcome outcome;
  };

  /// Reads the next item, or the error that ends the reading; false when there is no more to do.
  template <class Read, class Weight>
  bool take(Task& task, const Read& read, const Weight& weight) {
    std::lock_guard reading(reading_);
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] { return stopped_ || in_flight_ < budget_; });
      if (stopped_) return false;
    }
    if (ended_) return false;
    try {
      ended_ = !read(task.item);
      if (ended_) return false;
      task.outcome.weight = weight(task.item);
    } catch (...) {
      ended_ = true;
      task.outcome.error = std::current_exception();
    }
    task.number = next_read_++;
    std::lock_guard lock(mutex_);
    in_flight_ += task.outcome.weight;
    return true;
  }

  /// Keeps an outcome until it is due, and writes what is due unless another thread is doing so.
  template <class Write>
  void deliver(std::int64_t number, Outcome outcome, const Write& write) {
    std::unique_lock lock(mutex_);
    finished_.insert_or_assign(number, std::move(outcome));
    if (writing_) return;
    writing_ = true;
    while (!stopped_) {
      const auto due = finished_.find(next_write_);
      if (due == finished_.end()) break;
      Outcome next = std::move(due->second);
      finished_.erase(due);
      lock.unlock();
      bool go_on = false;
      try {
        if (!next.error) go_on = write(next.result);
      } catch (...) {
        next.error = std::current_exception();
      }
      lock.lock();
      ++next_write_;
      in_flight_ -= next.weight;
      error_ = next.error;
      stopped_ = !go_on;
      room_.notify_all();
    }
    writing_ = false;
  }

  const int threads_;
  const std::int64_t budget_;

  std::mutex reading_;  // held while an item is read; guards what follows
  bool ended_ = false;
  std::int64_t next_read_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable room_;
  std::map<std::int64_t, Outcome> finished_;  // by number, not yet written
  std::int64_t next_write_ = 0;
  std::int64_t in_flight_ = 0;
  bool writing_ = false;
  bool stopped_ = false;
  std::exception_ptr error_;
};

}  // namespace llmc
