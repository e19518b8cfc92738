#include "llmc/core/log.h"

#include <iostream>
#include <mutex>
#include <utility>

namespace llmc {
namespace {

struct Sink {
  std::mutex mutex;
  LogSink write = [](LogLevel level, std::string_view message) {
    if (level >= LogLevel::kWarning) {
      std::cerr << (level == LogLevel::kWarning ? "warning: " : "error: ") << message << '\n';
    }
  };
};

Sink& sink() {
  static Sink instance;
  return instance;
}

}  // namespace

void set_log_sink(LogSink write) {
  std::lock_guard lock(sink().mutex);
  sink().write = std::move(write);
}

void log(LogLevel level, std::string_view message) {
  std::lock_guard lock(sink().mutex);
  if (sink().write) sink().write(level, message);
}

}  // namespace llmc
