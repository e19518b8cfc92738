// Without a GPU, the tests of a CUDA build are skipped with the reason.

#include <gtest/gtest.h>

#include "llmc/core/device.h"
#include "llmc/core/error.h"

namespace llmc::testing {
namespace {

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    try {
      Device::open();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

const auto* const kNeedsGpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace llmc::testing
