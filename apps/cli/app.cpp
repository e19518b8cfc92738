#include "cli/app.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>

#include "llmc/core/error.h"

namespace llmc::cli {
namespace {

// Where a standard stream is closed, the next file that is opened would take its number and what is
// printed would land in that file.
void fill_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) close(fd);
}

// What a user or a file wrote stands in messages; a terminal must not take it for commands.
std::string printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}

// Threads of a team that wait for each other should give up their processor: where other programs
// run, spinning makes short steps many times slower, and where none do it gains little. OpenMP
// reads this before main, so the program starts itself again; whoever has set it is left alone.
void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  execv(program.c_str(), argv);  // returns only where it failed; then the threads spin
}

}  // namespace

int run_app(std::string_view name, char** argv, const std::function<Work()>& prepare) {
  wait_passively(argv);
  fill_standard_streams();
  // A file that outgrows the system's limit becomes an error of the write.
  std::signal(SIGXFSZ, SIG_IGN);
  int status_of_error = kBadInput;
  try {
    const Work work = prepare();
    status_of_error = kFailed;
    const int status = work ? work() : kDone;
    std::cout.flush();
    const bool printed = std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (status == kDone && !printed) {
      std::cerr << name << ": cannot write to the standard output\n";
      return kFailed;
    }
    return status;
  } catch (const std::exception& error) {
    std::cout.flush();
    // At once: other ranks may print to the same place.
    std::cerr << concat(name, ": ", printable(error.what()), "\n");
    return kind_of(error) == ErrorKind::kComm ? kFailed : status_of_error;
  }
}

std::string read_standard_input() {
  std::string text;
  char buffer[1 << 16];
  while (std::cin.read(buffer, sizeof buffer) || std::cin.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(std::cin.gcount()));
  }
  check_standard_input();
  return text;
}

void check_standard_input() {
  // Where std::cin reads through stdin, only that notices.
  if (!std::cin.bad() && std::ferror(stdin) == 0) return;
  fail(ErrorKind::kIo, "file", "cannot read the standard input; it may be a folder");
}

}  // namespace llmc::cli
