#include "cli/ranks.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>

#include "cli/app.h"
#include "llmc/core/device.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc::cli {

namespace {

/// Ends the process unless it is destroyed in time.
class EndsAfter {
 public:
  EndsAfter(double seconds, std::string message)
      : thread_([this, seconds, message = std::move(message)] {
          std::unique_lock lock(mutex_);
          const std::chrono::duration<double> time(seconds);
          if (over_.wait_for(lock, time, [this] { return done_; })) return;
          [[maybe_unused]] const auto written =
              write(STDERR_FILENO, message.data(), message.size());
          _exit(kFailed);
        }) {}
  ~EndsAfter() {
    {
      const std::scoped_lock lock(mutex_);
      done_ = true;
    }
    over_.notify_all();
    thread_.join();
  }
  EndsAfter(const EndsAfter&) = delete;
  EndsAfter& operator=(const EndsAfter&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<ProcessGroup> join(std::string_view app, const StartUp& options) {
  constexpr double kForItsOwnMessage = 5;
  const EndsAfter guard(options.deadline_s + kForItsOwnMessage,
                        concat(app,
                               ": [comm] expected all ranks to start MPI before the deadline "
                               "(comm_deadline = ",
                               options.deadline_s, " s), got no word from some\n"));
  return ProcessGroup::join(options);
}

RankPlace place_of(const ProcessGroup& processes) {
  const int gpus = visible_gpus();
  const bool shares = processes.size() > 1 && backend_name() != "cpu";
  return {shares ? choose_gpu(processes, gpus) : 0, processes.local_size()};
}

void log_as_one(std::string_view app, const ProcessGroup& processes) {
  if (processes.size() == 1) return;
  const int rank = processes.rank();
  set_log_sink([rank, prefix = concat(app, ": rank ", rank, ": ")](LogLevel level,
                                                                   std::string_view message) {
    if (level == LogLevel::kError) std::cerr << concat(prefix, message, "\n");
    if (level == LogLevel::kWarning && rank == 0) std::cerr << concat("warning: ", message, "\n");
  });
}

}  // namespace llmc::cli
