#include "apps/program.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc::testing {

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Program::Program(const std::string& path, const std::vector<std::string>& arguments,
                 const std::string& folder) {
  static int count = 0;
  ++count;
  out_path_ = concat(folder, "/stdout.", count);
  err_path_ = concat(folder, "/stderr.", count);
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  write_text(out_path_, "");
  write_text(err_path_, "");
  pid_ = fork();
  if (pid_ < 0) fail(ErrorKind::kIo, "test", "cannot start ", path);
  if (pid_ == 0) {
    const int out = open(out_path_.c_str(), O_WRONLY);
    const int err = open(err_path_.c_str(), O_WRONLY);
    setenv("OMP_NUM_THREADS", "1", 0);
    if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0 ||
        chdir(folder.c_str()) != 0) {
      _exit(127);
    }
    execv(argv[0], argv.data());
    _exit(127);
  }
}

Program::~Program() {
  if (ended(false)) return;
  kill(pid_, SIGKILL);
  ended(true);
}

void Program::send(int signal) {
  kill(pid_, signal);
}

bool Program::ended(bool block) {
  if (ended_) return true;
  struct rusage usage {};
  ended_ = wait4(pid_, &raw_status_, block ? 0 : WNOHANG, &usage) == pid_;
  if (ended_) peak_memory_ = std::int64_t{usage.ru_maxrss} * 1024;
  return ended_;
}

bool Program::wait_for(const std::string& text) {
  for (int i = 0; i < 6000; ++i) {
    const bool over = ended(false);
    if (read_text(out_path_).find(text) != std::string::npos) return true;
    if (over) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

Outcome Program::wait() {
  ended(true);
  const int status =
      WIFSIGNALED(raw_status_) ? 128 + WTERMSIG(raw_status_) : WEXITSTATUS(raw_status_);
  return {status, read_text(out_path_), read_text(err_path_), peak_memory_};
}

Outcome run_app(const std::string& app, const Arguments& arguments, const std::string& folder) {
  return Program(LLMC_APPS_DIR "/" + app, arguments, folder).wait();
}

Outcome prepare_tales(const std::string& folder) {
  return run_app("prepare",
                 {"--corpus", "tales", "--bytes", "20000", "--seed", "1", "--val-tokens", "2000",
                  "--out-dir", "data", "--name", "tales"},
                 folder);
}

}  // namespace llmc::testing
