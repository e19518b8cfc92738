#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace llmc::cli {

/// Exit statuses of every app.
enum ExitStatus : int {
  kDone = 0,
  kFailed = 1,       ///< while running
  kBadInput = 2,     ///< wrong options or files, found before work began
  kSignalled = 128,  ///< plus the signal's number
};

/// The work of an app, once its options and files are known to be usable; returns the exit status.
using Work = std::function<int()>;

/// The whole of an app: `prepare` reads options and opens files and returns the work, or an empty
/// function when there is nothing to do. An error ends the app with one line on stderr, and with
/// kBadInput where it arose in `prepare`, else with kFailed. Communication that fails is never a
/// bad input: the same start may succeed later. argv: main's.
int run_app(std::string_view name, char** argv, const std::function<Work()>& prepare);

/// All of the standard input; an I/O error where it cannot be read.
std::string read_standard_input();
/// An I/O error where std::cin ended because it cannot be read.
void check_standard_input();

}  // namespace llmc::cli
