// Runs train on a terminal that goes away.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "apps/program.h"
#include "llmc/core/error.h"
#include "llmc/io/checkpoint.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::Outcome;
using testing::TempFolder;

/// A shell command in a session of its own, whose terminal this test holds.
class TerminalSession {
 public:
  TerminalSession(const std::string& command, const std::string& folder)
      : terminal_(posix_openpt(O_RDWR | O_NOCTTY)) {
    if (terminal_ < 0 || grantpt(terminal_) != 0 || unlockpt(terminal_) != 0) {
      fail(ErrorKind::kIo, "test", "cannot open a terminal");
    }
    const std::string name = ptsname(terminal_);
    pid_ = fork();
    if (pid_ < 0) fail(ErrorKind::kIo, "test", "cannot start a process");
    if (pid_ != 0) return;
    close(terminal_);
    setsid();
    const int side = open(name.c_str(), O_RDWR);
    ioctl(side, TIOCSCTTY, 0);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(side, stream);
    if (side > STDERR_FILENO) close(side);
    if (chdir(folder.c_str()) == 0) execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ~TerminalSession() {
    hang_up();
    if (pid_ > 0) kill(pid_, SIGKILL);
    wait();
  }
  TerminalSession(const TerminalSession&) = delete;
  TerminalSession& operator=(const TerminalSession&) = delete;

  /// Reads until the text comes; false where the process ends before.
  bool wait_for(const std::string& text) {
    std::string all;
    char bytes[4096];
    while (all.find(text) == std::string::npos) {
      const ssize_t count = read(terminal_, bytes, sizeof bytes);
      if (count <= 0) return false;
      all.append(bytes, static_cast<std::size_t>(count));
    }
    return true;
  }
  void hang_up() {
    if (terminal_ >= 0) close(terminal_);
    terminal_ = -1;
  }
  void send(int signal) { kill(pid_, signal); }
  /// The exit status; 128 + n if signal n killed it.
  int wait() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, 0) != pid_) return -1;
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  int terminal_;
  pid_t pid_ = -1;
};

class Hangup : public ::testing::Test {
 protected:
  void SetUp() override {
    const Outcome outcome = testing::prepare_tales(folder_.path().string());
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  static std::string command(const std::string& before) {
    return concat(before, "exec " LLMC_APPS_DIR
                          "/train --n-layer 1 --n-head 2 --n-embd 16 --block-size 32 --tokenizer "
                          "byte --train-data data/tales_train.bin --micro-batch 2 --threads 1 "
                          "--val-every 0 --sample-every 0 --checkpoint-every 0 --log-every 1 "
                          "--max-steps 1000000 --out-dir run");
  }
  std::int64_t saved_step() {
    const auto last = latest_checkpoint(folder_ / "run");
    if (!last) return -1;
    CheckpointReader reader(*last);
    reader.verify();
    return reader.info().step;
  }

  TempFolder folder_;
};

TEST_F(Hangup, EndsTheRunWithACheckpoint) {
  TerminalSession session(command(""), folder_.path().string());
  ASSERT_TRUE(session.wait_for("20/1000000"));
  session.hang_up();
  // As a shell does that passes it on, and a script that makes SIGTERM of it.
  session.send(SIGHUP);
  session.send(SIGTERM);
  const int status = session.wait();
  EXPECT_TRUE(status == 128 + SIGHUP || status == 128 + SIGTERM) << status;
  EXPECT_GE(saved_step(), 20);
}

TEST_F(Hangup, IsIgnoredWhereItWasIgnoredBefore) {
  TerminalSession session(command("trap '' HUP; "), folder_.path().string());
  ASSERT_TRUE(session.wait_for("20/1000000"));
  session.send(SIGHUP);
  session.send(SIGHUP);
  ASSERT_TRUE(session.wait_for("000/1000000"));
  session.hang_up();
  session.send(SIGTERM);
  EXPECT_EQ(session.wait(), 128 + SIGTERM);
  EXPECT_GE(saved_step(), 1000);
}

}  // namespace
}  // namespace llmc
