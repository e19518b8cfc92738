#include "cli/app.h"

#include <exception>
#include <iostream>

namespace llmc::cli {

int run_app(std::string_view name, const std::function<Work()>& prepare) {
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
    std::cerr << name << ": " << error.what() << '\n';
    return status_of_error;
  }
}

}  // namespace llmc::cli
