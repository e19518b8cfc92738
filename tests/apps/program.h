#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace llmc::testing {

using Arguments = std::vector<std::string>;

/// All of a, then all of b.
Arguments operator+(Arguments a, const Arguments& b);

/// What a finished program left behind.
struct Outcome {
  int status = -1;  ///< exit status; 128 + n if signal n killed it
  std::string out;
  std::string err;
  std::int64_t peak_memory = 0;  ///< bytes
};

/// A program under test, running in a folder.
class Program {
 public:
  /// Starts it; arguments do not pass through a shell. Output goes to files in the folder.
  Program(const std::string& path, const Arguments& arguments, const std::string& folder);
  /// Kills it if it still runs.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal);
  /// Waits until its standard output contains `text`; false if it ended, or after a minute.
  bool wait_for(const std::string& text);
  /// Waits for its end.
  Outcome wait();

 private:
  bool ended(bool block);

  pid_t pid_;
  std::string out_path_, err_path_;
  bool ended_ = false;
  int raw_status_ = 0;
  std::int64_t peak_memory_ = 0;
};

/// A program of apps/, such as "train", from its start to its end.
Outcome run_app(const std::string& app, const Arguments& arguments, const std::string& folder);

/// prepare: little stories in the folder, data/tales_train.bin and data/tales_val.bin.
Outcome prepare_tales(const std::string& folder);

}  // namespace llmc::testing
