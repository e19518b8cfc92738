#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>

#include "llmc/core/file.h"

namespace llmc {

/// A log that outlasts a full disk. Lines that cannot be written wait in memory and follow, in
/// order, with the first line for which there is room again; one that was written in part is
/// completed. A warning says when that begins and when it is over, another at the end how many
/// lines are lost, if any. Nothing else may write to the file meanwhile.
class LogFile {
 public:
  static constexpr std::size_t kMostWaiting = std::size_t{4} << 20;

  /// Appends to a file that is there; an io or input error if it cannot be opened. Of the lines
  /// that wait, the oldest are lost beyond `most_waiting` bytes.
  explicit LogFile(std::filesystem::path path, std::size_t most_waiting = kMostWaiting);
  /// Tries a last time to write what waits.
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// Appends a line, given with its newline.
  void append(std::string line);

 private:
  void write_waiting();
  void drop_oldest();

  std::filesystem::path path_;
  AppendFile file_;
  std::size_t most_waiting_;
  std::deque<std::string> waiting_;  // of the first, what is not in the file yet
  std::size_t waiting_bytes_ = 0;
  bool torn_ = false;    // a part of the first is in the file
  bool failed_ = false;  // the last write
  std::int64_t lost_ = 0;
  std::string error_;  // of the last write that failed
};

}  // namespace llmc
