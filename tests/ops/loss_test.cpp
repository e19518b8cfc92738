#include "llmc/ops/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/isa_test.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

class CrossEntropy : public IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isa, CrossEntropy, ::testing::ValuesIn(available_isas()), isa_name);

struct Sizes {
  std::int64_t R, V, Vp;
};
/// The last ones have rows that start anywhere, and more columns than a GPU's shared memory holds.
constexpr Sizes kSizes[] = {{1, 1, 1},         {3, 2, 5},          {5, 17, 17},
                            {4, 4099, 4160},   {67, 131, 192},     {3, 50257, 50304},
                            {9, 50257, 50259}, {2, 150001, 150003}};

/// Every fourth row does not count.
Values some_targets(const Sizes& s) {
  Values targets(static_cast<std::size_t>(s.R));
  for (std::int64_t r = 0; r < s.R; ++r) {
    targets[static_cast<std::size_t>(r)] =
        r % 4 == 3 ? -1.0 : static_cast<double>((r * 7919 + s.V - 1) % s.V);
  }
  return targets;
}

TEST_P(CrossEntropy, ForwardAndBackward) {
  Stream stream = open();
  constexpr float kDloss = 1.0f / 96;
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(concat(name_of(dtype), " ", s.R, "x", s.V, " of ", s.Vp));
      const Values target = some_targets(s);
      const TestTensor targets(stream, DType::kI32, {s.R}, target);
      const auto logits = TestTensor::random(stream, dtype, {s.R, s.Vp}, 1, 3.0);
      const Values x = logits.values();
      const auto exact = cross_entropy(Arithmetic::kExact, x, target, s.V, kDloss);
      const auto plain = cross_entropy(Arithmetic::kPlainBf16, x, target, s.V, kDloss);
      const auto losses = TestTensor::nan(stream, DType::kF32, {s.R});
      StepBlock start;
      start.loss_sum = 2.5;
      start.counted_tokens = 10;
      TestStruct<StepBlock> block(stream, start);
      cross_entropy_forward(stream, losses, logits, targets, s.V, block.device());
      if (s.V > 1) expect_close("losses", losses.values(), exact.losses, 16);
      EXPECT_EQ(logits.values(), x);
      double sum = 2.5;
      std::int64_t counted = 10;
      for (std::size_t r = 0; r < target.size(); ++r) {
        sum += losses.values()[r];
        counted += target[r] >= 0 ? 1 : 0;
      }
      EXPECT_NEAR(block.get().loss_sum, sum, 1e-9 * sum);
      EXPECT_EQ(block.get().counted_tokens, counted);

      const auto again = TestTensor::nan(stream, DType::kF32, {s.R});
      cross_entropy_backward(stream, again, logits, targets, s.V, kDloss, nullptr);
      EXPECT_EQ(again.bytes(), losses.bytes());
      if (s.V > 1) expect_close("dlogits", logits, exact.dlogits, plain.dlogits, 64);
      const Values d = logits.values();
      for (std::int64_t r = 0; r < s.R; ++r) {
        const bool counts = target[static_cast<std::size_t>(r)] >= 0;
        for (std::int64_t v = counts ? s.V : 0; v < s.Vp; ++v) {
          ASSERT_EQ(d[static_cast<std::size_t>(r * s.Vp + v)], 0) << r << ", " << v;
        }
      }
    }
  }
}

TEST_P(CrossEntropy, LogitsMayStartAtAnyElement) {
  Stream stream = open();
  const Sizes s{3, 1021, 1024};
  const Values target = some_targets(s);
  const TestTensor targets(stream, DType::kI32, {s.R}, target);
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t first : {1, 3, 4}) {
      const auto whole = TestTensor::random(stream, dtype, {first + s.R * s.Vp + 1}, 1, 3.0);
      const Values before = whole.values();
      const auto begin = before.begin() + first;
      const Values x(begin, begin + s.R * s.Vp);
      const auto exact = cross_entropy(Arithmetic::kExact, x, target, s.V, 1.0);
      const auto plain = cross_entropy(Arithmetic::kPlainBf16, x, target, s.V, 1.0);
      const Tensor logits = Tensor(whole).flat(first, s.R * s.Vp).view({s.R, s.Vp});
      const auto losses = TestTensor::nan(stream, DType::kF32, {s.R});
      cross_entropy_backward(stream, losses, logits, targets, s.V, 1.0f, nullptr);
      expect_close("losses", losses.values(), exact.losses, 16);
      const TestTensor d(stream, dtype, {s.R, s.Vp});
      copy(stream, d, logits);
      expect_close("dlogits", d, exact.dlogits, plain.dlogits, 64);
      const Values after = whole.values();
      EXPECT_TRUE(std::equal(before.begin(), begin, after.begin()));
      EXPECT_EQ(after.back(), before.back());
    }
  }
}

TEST_P(CrossEntropy, MicroStepsAddUp) {
  Stream stream = open();
  const Sizes s{1030, 7, 8};
  const Values target = some_targets(s);
  const TestTensor targets(stream, DType::kI32, {s.R}, target);
  TestStruct<StepBlock> block(stream);
  double sum = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto logits = TestTensor::random(stream, DType::kBF16, {s.R, s.Vp}, i);
    const TestTensor losses(stream, DType::kF32, {s.R});
    cross_entropy_backward(stream, losses, logits, targets, s.V, 0.1f, block.device());
    for (const double loss : losses.values()) sum += loss;
  }
  EXPECT_NEAR(block.get().loss_sum, sum, 1e-12 * sum);
  EXPECT_EQ(block.get().counted_tokens,
            4 * std::count_if(target.begin(), target.end(), [](double t) { return t >= 0; }));
}

TEST_P(CrossEntropy, EveryProbabilityIsAccurate) {
  Stream stream = open();
  const Sizes s{2, 1003, 1003};
  const auto logits = TestTensor::random(stream, DType::kF32, {s.R, s.Vp}, 1, 5.0);
  const TestTensor targets(stream, DType::kI32, {s.R}, {0, 0});
  const auto exact = cross_entropy(Arithmetic::kExact, logits.values(), {0, 0}, s.V, 1.0);
  const TestTensor losses(stream, DType::kF32, {s.R});
  cross_entropy_backward(stream, losses, logits, targets, s.V, 1.0f, nullptr);
  const Values d = logits.values();
  for (std::size_t i = 0; i < d.size(); ++i) {
    // e^x of a rounded x is off by x units of roundoff.
    const double p = std::abs(exact.dlogits[i]);
    EXPECT_NEAR(d[i], exact.dlogits[i], (16 - std::log(p)) * 0x1p-24 * p) << i;
  }
}

TEST_P(CrossEntropy, StaysFiniteAndExactFarBelowTheMaximum) {
  Stream stream = open();
  for (const double largest : {50.0, 90.0, 104.0, 200.0, 5000.0}) {
    for (const DType dtype : kFloatTypes) {
      Values x(40, 0.0);
      x[7] = largest;
      const TestTensor logits(stream, dtype, {2, 20}, x);
      const TestTensor targets(stream, DType::kI32, {2}, {3, 3});
      const TestTensor losses(stream, DType::kF32, {2});
      const double gap = logits.values()[7];
      cross_entropy_backward(stream, losses, logits, targets, 20, 1.0f, nullptr);
      EXPECT_NEAR(losses.values()[0], gap, 1e-6 * gap);
      EXPECT_NEAR(losses.values()[1], std::log(20.0), 1e-6);
      const Values d = logits.values();
      EXPECT_EQ(d[3], -1);
      EXPECT_NEAR(d[7], 1, 1e-6);
      EXPECT_NEAR(d[23], 1.0 / 20 - 1, dtype == DType::kF32 ? 1e-6 : 0x1p-9);
    }
  }
}

TEST_P(CrossEntropy, LargeLogitsKeepTheirPrecision) {
  Stream stream = open();
  Values x(64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 30000 + static_cast<double>(i % 7);
  const TestTensor logits(stream, DType::kF32, {1, 64}, x);
  const auto exact = cross_entropy(Arithmetic::kExact, x, {5}, 64, 1.0);
  const TestTensor targets(stream, DType::kI32, {1}, {5});
  const TestTensor losses(stream, DType::kF32, {1});
  cross_entropy_backward(stream, losses, logits, targets, 64, 1.0f, nullptr);
  expect_close("losses", losses.values(), exact.losses, 8);
  expect_close("dlogits", logits.values(), exact.dlogits, 8);
}

TEST_P(CrossEntropy, NanAndInfinityReachTheLoss) {
  Stream stream = open();
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const std::size_t at : {0u, 5u, 36u}) {
      Values x(37, 0.5);
      x[at] = bad;
      const TestTensor logits(stream, DType::kF32, {1, 37}, x);
      const TestTensor targets(stream, DType::kI32, {1}, {1});
      const TestTensor losses(stream, DType::kF32, {1});
      TestStruct<StepBlock> block(stream);
      cross_entropy_forward(stream, losses, logits, targets, 37, block.device());
      EXPECT_FALSE(std::isfinite(block.get().loss_sum)) << bad << " at " << at;
    }
  }
}

TEST_P(CrossEntropy, ThreadsDoNotChangeBits) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits_for_any_threads([&](Stream& stream) {
      const Sizes s{67, 131, 192};
      const TestTensor targets(stream, DType::kI32, {s.R}, some_targets(s));
      const auto logits = TestTensor::random(stream, dtype, {s.R, s.Vp}, 1, 3.0);
      const TestTensor losses(stream, DType::kF32, {s.R});
      TestStruct<StepBlock> block(stream);
      cross_entropy_backward(stream, losses, logits, targets, s.V, 0.1f, block.device());
      const TestTensor total(stream, DType::kF32, {1}, {block.get().loss_sum});
      return bytes_of(losses, logits, total);
    });
  }
}

TEST(CrossEntropyErrors, NameTheArgument) {
  Stream stream = open_stream();
  const TestTensor logits(stream, DType::kF32, {2, 4});
  const TestTensor losses(stream, DType::kF32, {2});
  const TestTensor targets(stream, DType::kI32, {2});
  expect_error(ErrorKind::kInput, "[cross_entropy_forward] vocab_size: expected 1 to 4, got 5",
               [&] { cross_entropy_forward(stream, losses, logits, targets, 5, nullptr); });
  expect_error(ErrorKind::kInput,
               "[cross_entropy_backward] targets: expected 2 elements of i32, got f32 (2)",
               [&] { cross_entropy_backward(stream, losses, logits, losses, 4, 1.0f, nullptr); });
  expect_error(ErrorKind::kInput, "[cross_entropy_forward] losses",
               [&] { cross_entropy_forward(stream, logits, logits, targets, 4, nullptr); });
}

TEST(CrossEntropyErrors, ATargetOutOfRangeIsRefusedOrMakesTheLossNan) {
  Stream stream = open_stream();
  const TestTensor logits(stream, DType::kF32, {2, 4});
  const TestTensor losses(stream, DType::kF32, {2});
  for (const double bad : {-2.0, 4.0}) {
    const TestTensor wrong(stream, DType::kI32, {2}, {0, bad});
    if (backend_name() != "cpu") {
      TestStruct<StepBlock> block(stream);
      cross_entropy_forward(stream, losses, logits, wrong, 4, block.device());
      EXPECT_NEAR(losses.values()[0], std::log(4.0), 1e-6);
      EXPECT_TRUE(std::isnan(losses.values()[1]));
      EXPECT_TRUE(std::isnan(block.get().loss_sum));
      continue;
    }
    expect_error(ErrorKind::kInput, "[cross_entropy_forward] targets: expected -1 to 3, got",
                 [&] { cross_entropy_forward(stream, losses, logits, wrong, 4, nullptr); });
  }
}

}  // namespace
}  // namespace llmc::testing
