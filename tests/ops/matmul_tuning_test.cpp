// How the CUDA backend chooses among algorithms for matrix products.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/core/file.h"
#include "llmc/ops/linear.h"
#include "support/captured_log.h"
#include "support/matmul_oracle.h"
#include "support/temp_folder.h"
#include "support/test_tensor.h"

namespace llmc {
namespace {

using testing::CapturedLog;
using testing::ExactSum;
using testing::product_element;
using testing::StoredMatrix;
using testing::sum_tolerance;
using testing::TempFolder;
using testing::TestTensor;
using testing::Values;

// Large enough to be timed.
constexpr std::int64_t kM = 1024, kN = 1536, kK = 512;

double at(const Values& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

/// The bytes of c = a·b + c for random matrices.
std::vector<std::uint8_t> product(Stream& stream) {
  const TestTensor a = TestTensor::random(stream, DType::kBF16, {kM, kK}, 1);
  const TestTensor b = TestTensor::random(stream, DType::kBF16, {kK, kN}, 2);
  const TestTensor c = TestTensor::random(stream, DType::kF32, {kM, kN}, 3);
  matmul(stream, c, a, b, {.beta = 1.0f});
  return c.bytes();
}

TEST(MatmulTuning, TimingLeavesTheOutputAlone) {
  Stream stream(Device::open());
  const TestTensor a = TestTensor::random(stream, DType::kBF16, {kM, kK}, 1);
  const TestTensor b = TestTensor::random(stream, DType::kBF16, {kK, kN}, 2);
  const TestTensor c = TestTensor::random(stream, DType::kF32, {kM, kN}, 3);
  const Values before = c.values();
  matmul(stream, c, a, b, {.beta = 1.0f});
  const StoredMatrix left{a.values(), kK, false}, right{b.values(), kN, false};
  const Values after = c.values();
  for (std::int64_t e = 0; e < kM * kN; e += 7919) {
    ExactSum sum = product_element(left, right, kK, e / kN, e % kN);
    sum.add(at(before, e));
    ASSERT_NEAR(at(after, e), sum.value, sum_tolerance(sum, kK, DType::kF32)) << e;
  }
}

TEST(MatmulTuning, ChoicesCarryOver) {
  Stream first(Device::open());
  const std::vector<std::uint8_t> expected = product(first);
  const std::string choices = matmul_choices(first);
  EXPECT_NE(choices, "");
  for (const bool tune : {false, true}) {
    Stream second(Device::open({.tune_matmul = tune}));
    set_matmul_choices(second, choices);
    EXPECT_EQ(product(second), expected);
    EXPECT_EQ(matmul_choices(second), choices);
  }
  // Also into a stream that has chosen already.
  Stream third(Device::open({.tune_matmul = false}));
  product(third);
  set_matmul_choices(third, choices);
  EXPECT_EQ(product(third), expected);
  EXPECT_EQ(matmul_choices(third), choices);
}

TEST(MatmulTuning, WithoutTimingTheChoiceIsTheSame) {
  Stream first(Device::open({.tune_matmul = false}));
  Stream second(Device::open({.tune_matmul = false}));
  EXPECT_EQ(product(first), product(second));
  EXPECT_EQ(matmul_choices(first), matmul_choices(second));
}

TEST(MatmulTuning, AFileRemembersTheChoices) {
  const TempFolder folder;
  const std::string path = folder / "choices.txt";
  const auto choose = [&path] {
    Stream stream(Device::open({.tuning_cache = path}));
    product(stream);
    return matmul_choices(stream);
  };
  const std::string first = choose();
  const std::string file = read_text(path);
  EXPECT_EQ(file, first);
  EXPECT_EQ(choose(), first);
  EXPECT_EQ(read_text(path), file);

  // A damaged file is mended; a name that cannot be a file does no harm.
  const CapturedLog log;
  write_text(path, file.substr(0, file.size() - 5));
  const std::string second = choose();
  EXPECT_NE(log.text().find("damaged lines: 1"), std::string::npos) << log.text();
  EXPECT_EQ(read_text(path), second);
  Stream stream(Device::open({.tuning_cache = folder.path().string()}));
  EXPECT_NO_THROW(product(stream));
  EXPECT_NE(log.text().find("not kept"), std::string::npos) << log.text();
}

TEST(MatmulTuning, RefusesWhatIsNoChoice) {
  Stream stream(Device::open());
  const CapturedLog log;
  set_matmul_choices(stream, "anything\nelse");
  EXPECT_NE(log.text().find("2 are damaged"), std::string::npos) << log.text();
  EXPECT_EQ(matmul_choices(stream), "");
}

// TF32 keeps 10 bits of each input, so every term is within about 2^-10 of the exact one.
TEST(MatmulTuning, Tf32RoundsInputsOnlyWhereAllowed) {
  Stream stream(Device::open());
  const std::int64_t m = 128, n = 256, k = 192;
  const TestTensor a = TestTensor::random(stream, DType::kF32, {m, k}, 1);
  const TestTensor b = TestTensor::random(stream, DType::kF32, {k, n}, 2);
  const StoredMatrix left{a.values(), k, false}, right{b.values(), n, false};
  for (const bool allow : {false, true, false}) {
    stream.allow_tf32(allow);
    const TestTensor c = TestTensor::nan(stream, DType::kF32, {m, n});
    matmul(stream, c, a, b);
    const Values actual = c.values();
    double largest = 0;  // error, relative to what fp32 may do
    for (std::int64_t e = 0; e < m * n; e += 13) {
      const ExactSum sum = product_element(left, right, k, e / n, e % n);
      const double error = std::abs(at(actual, e) - sum.value);
      ASSERT_LE(error, 0x1p-10 * sum.magnitude) << e;
      largest = std::max(largest, error / sum_tolerance(sum, k, DType::kF32));
    }
    if (allow) {
      EXPECT_GT(largest, 1.0);
    } else {
      EXPECT_LE(largest, 1.0);
    }
  }
}

}  // namespace
}  // namespace llmc
