#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/temp_folder.h"
#include "support/test_tensor.h"

namespace llmc::testing {

inline constexpr DType kFloatTypes[] = {DType::kF32, DType::kBF16};

/// Tests of one op, run on every instruction set of this machine.
class IsaTest : public ::testing::TestWithParam<std::string> {
 protected:
  virtual Stream open(int threads = 2) const { return open_stream(GetParam(), threads); }

  /// compute(stream) returns the bytes of an op's results; they must not depend on the threads.
  template <class Compute>
  void expect_same_bits_for_any_threads(const Compute& compute) const {
    Stream one = open(1);
    const std::vector<std::uint8_t> expected = compute(one);
    for (const int threads : {2, 3}) {
      Stream stream = open(threads);
      EXPECT_EQ(compute(stream), expected) << threads << " threads";
    }
  }
};

inline std::string isa_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

/// All the bytes, one tensor after the other.
template <class... Tensors>
std::vector<std::uint8_t> bytes_of(const Tensors&... tensors) {
  std::vector<std::uint8_t> all;
  const auto append = [&all](const TestTensor& t) {
    const std::vector<std::uint8_t> bytes = t.bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  (append(tensors), ...);
  return all;
}

}  // namespace llmc::testing
