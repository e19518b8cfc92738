#pragma once

#include <cstdlib>
#include <filesystem>

namespace llmc::testing {

/// The folder of larger test files (LLMC_TEST_DATA), or an empty path where it is not set.
inline std::filesystem::path test_data_folder() {
  const char* folder = std::getenv("LLMC_TEST_DATA");
  return folder == nullptr ? "" : folder;
}

/// A test that begins with this is skipped where there is no test data.
#define LLMC_REQUIRE_TEST_DATA()                                                      \
  if (llmc::testing::test_data_folder().empty()) {                                    \
    GTEST_SKIP() << "LLMC_TEST_DATA is not set: it names the folder of larger files"; \
  }

}  // namespace llmc::testing
