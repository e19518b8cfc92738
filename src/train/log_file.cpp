#include "llmc/train/log_file.h"

#include <exception>
#include <utility>

#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc {
namespace fs = std::filesystem;

LogFile::LogFile(fs::path path, std::size_t most_waiting)
    : path_(std::move(path)), file_(path_), most_waiting_(most_waiting) {}

LogFile::~LogFile() {
  try {
    write_waiting();
    lost_ += static_cast<std::int64_t>(waiting_.size());
    if (lost_ == 0) return;
    log(LogLevel::kWarning,
        concat(path_.string(), " lacks ", lost_, lost_ == 1 ? " line" : " lines",
               ", which could not be written: ", error_));
  } catch (const std::exception&) {  // a destructor has nobody to tell
  }
}

void LogFile::append(std::string line) {
  waiting_bytes_ += line.size();
  waiting_.push_back(std::move(line));
  write_waiting();
}

void LogFile::write_waiting() {
  bool failed = false;
  while (!waiting_.empty() && !failed) {
    std::string& line = waiting_.front();
    const std::size_t written = file_.append_part(line, error_);
    waiting_bytes_ -= written;
    failed = written < line.size();
    if (failed) {
      torn_ = torn_ || written > 0;
      line.erase(0, written);
    } else {
      torn_ = false;
      waiting_.pop_front();
    }
  }
  drop_oldest();
  if (failed == std::exchange(failed_, failed)) return;
  log(LogLevel::kWarning,
      failed ? concat("[file] ", error_, "; its lines wait in memory until they can be written")
             : concat(path_.string(), " can be written again; the lines that waited are in it",
                      lost_ > 0 ? concat(", except for ", lost_, " of them") : ""));
}

// A line that is in the file in part stays, so that the next one begins on a line of its own.
void LogFile::drop_oldest() {
  const std::size_t first = torn_ ? 1 : 0;
  while (waiting_bytes_ > most_waiting_ && waiting_.size() > first) {
    const auto oldest = waiting_.begin() + static_cast<std::ptrdiff_t>(first);
    waiting_bytes_ -= oldest->size();
    waiting_.erase(oldest);
    ++lost_;
  }
}

}  // namespace llmc
