// The main function of test programs that run as several ranks. Rank 0 prints as usual, the others
// only what fails. A rank whose test ends early is noticed by the others, so nothing hangs.

#include "support/mpi_main.h"

#include <gtest/gtest.h>

#include <iostream>

#include "llmc/core/error.h"
#include "support/rank_device.h"

namespace llmc::testing {
namespace {

Communicator* the_ranks = nullptr;
const Device* the_device = nullptr;

class FailuresOnly : public ::testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " << ranks().rank() << ": "
              << (result.file_name() != nullptr ? result.file_name() : "?") << ":"
              << result.line_number() << ": " << result.message() << std::endl;
  }
};

}  // namespace

Communicator& ranks() {
  return *the_ranks;
}
const Device& rank_device() {
  return *the_device;
}

}  // namespace llmc::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto processes = llmc::ProcessGroup::join(llmc::testing::test_start_up());
  try {
    const llmc::Device device = llmc::testing::open_rank_device(*processes);
    const auto comm = llmc::Communicator::open(device, processes);
    llmc::testing::the_ranks = comm.get();
    llmc::testing::the_device = &device;
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    if (comm->rank() != 0) {
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new llmc::testing::FailuresOnly);
    }
    return RUN_ALL_TESTS();
  } catch (const llmc::Error& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
