#include "cli/app.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <iostream>
#include <string>

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

}  // namespace

int run_app(std::string_view name, const std::function<Work()>& prepare) {
  fill_standard_streams();
  // A file that outgrows the system's limit becomes an error of the write.
  std::signal(SIGXFSZ, SIG_IGN);
  int status_of_error = kBadInput;
  try {
    const Work work = prepare();
    status_of_error = kFailed;
    const int status = work ? work() : kDone;
    std::cout.flush();
    if (!std::cout) {
      std::cerr << name << ": cannot write to the standard output\n";
      return kFailed;
    }
    return status;
  } catch (const std::exception& error) {
    std::cout.flush();
    std::cerr << name << ": " << printable(error.what()) << '\n';
    return status_of_error;
  }
}

}  // namespace llmc::cli
