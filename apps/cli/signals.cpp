#include "cli/signals.h"

#include <unistd.h>

#include <csignal>
#include <cstring>
#include <initializer_list>

namespace llmc::cli {
namespace {

std::atomic<int> noted_signal{0};
bool someone_watches = false;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int number) {
  if (number == SIGHUP) {
    int none = 0;
    if (!noted_signal.compare_exchange_strong(none, number)) return;
  } else {
    const int before = noted_signal.exchange(number);
    if (before != 0 && before != SIGHUP) _exit(128 + number);
  }
  if (!someone_watches) return;
  // Only what a signal handler may call.
  const char message[] = "\nstopping; a second signal quits at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, message, sizeof message - 1);
}

}  // namespace

const std::atomic<int>& watch_signals() {
  someone_watches = isatty(STDERR_FILENO) != 0;
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_handler = note_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaction(number, &action, nullptr);
  struct sigaction before;
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  // A reader of the output that goes away must not take the run with it.
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  return noted_signal;
}

}  // namespace llmc::cli
