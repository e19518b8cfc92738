#include "llmc/ops/activation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/isa_test.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

class Activation : public IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isa, Activation, ::testing::ValuesIn(available_isas()), isa_name);

constexpr std::int64_t kCounts[] = {1, 7, 16, 33, 4099, 10007};

template <class Fn>
Values map(const Values& in, const Fn& fn) {
  Values out(in.size());
  std::transform(in.begin(), in.end(), out.begin(), fn);
  return out;
}

Values rounded(const Values& exact) {
  return map(exact, [](double x) { return stored(Arithmetic::kPlainBf16, x); });
}

TEST_P(Activation, GeluForward) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : kCounts) {
      const auto in = TestTensor::random(stream, dtype, {n}, 1, 2.0);
      const auto out = TestTensor::nan(stream, dtype, {n});
      gelu_forward(stream, out, in);
      const Values exact = map(in.values(), gelu);
      expect_close("gelu", out, exact, rounded(exact), 1);
    }
  }
}

TEST_P(Activation, GeluKeepsRelativeAccuracyFarFromZero) {
  Stream stream = open();
  Values x;
  for (double v = -6.0; v <= 30.0; v += 0.37) x.push_back(static_cast<float>(v));
  const auto n = static_cast<std::int64_t>(x.size());
  const TestTensor in(stream, DType::kF32, {n}, x);
  const TestTensor out(stream, DType::kF32, {n});
  gelu_forward(stream, out, in);
  const Values y = out.values();
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i], gelu(x[i]), 1e-5 * std::abs(gelu(x[i]))) << "at " << x[i];
  }
}

TEST_P(Activation, GeluOfExtremeValues) {
  Stream stream = open();
  const TestTensor in(stream, DType::kF32, {4}, {-1e30, 1e30, -100, 100});
  const TestTensor out(stream, DType::kF32, {4});
  gelu_forward(stream, out, in);
  const Values y = out.values();
  EXPECT_NEAR(y[0], 0, 1e-6);
  EXPECT_EQ(y[1], static_cast<double>(1e30f));
  EXPECT_NEAR(y[2], 0, 1e-30);
  EXPECT_EQ(y[3], 100);
  const TestTensor ones = TestTensor::filled(stream, DType::kF32, {4}, 1.0);
  const TestTensor small(stream, DType::kF32, {4}, {-30, 30, -100, 100});
  gelu_backward(stream, out, ones, small);
  const Values expected = {0, 1, 0, 1};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(out.values()[i], expected[i], 1e-6);
}

TEST_P(Activation, GeluBackwardAlsoInPlace) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : kCounts) {
      const auto in = TestTensor::random(stream, dtype, {n}, 1, 2.0);
      const auto dout = TestTensor::random(stream, dtype, {n}, 2);
      const auto din = TestTensor::nan(stream, dtype, {n});
      gelu_backward(stream, din, dout, in);
      Values exact = map(in.values(), gelu_gradient);
      const Values dy = dout.values();
      for (std::size_t i = 0; i < exact.size(); ++i) exact[i] *= dy[i];
      expect_close("dgelu", din, exact, rounded(exact), 4);
      gelu_backward(stream, dout, dout, in);
      EXPECT_EQ(dout.bytes(), din.bytes());
    }
  }
}

TEST_P(Activation, AddAlsoInPlace) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : kCounts) {
      const auto a = TestTensor::random(stream, dtype, {n}, 1);
      const auto b = TestTensor::random(stream, dtype, {n}, 2);
      const auto out = TestTensor::nan(stream, dtype, {n});
      add(stream, out, a, b);
      Values exact = a.values();
      const Values vb = b.values();
      for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += vb[i];
      expect_close("sum", out, exact, rounded(exact), 1);
      add(stream, a, a, b);
      EXPECT_EQ(a.bytes(), out.bytes());
    }
  }
}

TEST_P(Activation, ConvertRoundsToNearestEvenAndKeepsSpecialValues) {
  Stream stream = open();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Values values = {1.00390625, 1.01171875, -1.00390625, 1e-45, 3.4e38, kInf, -kInf, -0.0};
  Stream draws = open(1);
  const Values noise = TestTensor::random(draws, DType::kF32, {1001}, 3).values();
  values.insert(values.end(), noise.begin(), noise.end());
  const auto n = static_cast<std::int64_t>(values.size());
  const TestTensor f32(stream, DType::kF32, {n}, values);
  const TestTensor half(stream, DType::kBF16, {n});
  convert(stream, half, f32);
  const TestTensor expected(stream, DType::kBF16, {n}, values);  // by dtype.h's scalar rounding
  EXPECT_EQ(half.bytes(), expected.bytes());

  const TestTensor back(stream, DType::kF32, {n});
  convert(stream, back, half);
  EXPECT_EQ(back.values(), half.values());
  const TestTensor copy(stream, DType::kF32, {n});
  convert(stream, copy, f32);
  EXPECT_EQ(copy.bytes(), f32.bytes());

  const auto nan = TestTensor::nan(stream, DType::kF32, {5});
  const TestTensor half_nan(stream, DType::kBF16, {5});
  const TestTensor nan_back(stream, DType::kF32, {5});
  convert(stream, half_nan, nan);
  convert(stream, nan_back, half_nan);
  for (const double x : half_nan.values()) EXPECT_TRUE(std::isnan(x));
  for (const double x : nan_back.values()) EXPECT_TRUE(std::isnan(x));
}

TEST_P(Activation, AddressesDoNotChangeBits) {
  Stream stream = open();
  constexpr std::int64_t kCount = 5003;
  for (const DType dtype : kFloatTypes) {
    const auto a = TestTensor::random(stream, dtype, {kCount}, 1);
    const auto b = TestTensor::random(stream, dtype, {kCount}, 2);
    const Tensor& whole_a = a;
    const Tensor& whole_b = b;
    const Tensor a1 = whole_a.flat(1, kCount - 1);
    const Tensor b1 = whole_b.flat(1, kCount - 1);
    const auto expect_same = [&](const auto& op) {
      const TestTensor out(stream, dtype, {kCount});
      const TestTensor shifted(stream, dtype, {kCount - 1});
      op(out, whole_a, whole_b);
      op(shifted, a1, b1);
      const Values all = out.values();
      EXPECT_EQ(shifted.values(), Values(all.begin() + 1, all.end()));
    };
    expect_same(
        [&](const Tensor& out, const Tensor& x, const Tensor&) { gelu_forward(stream, out, x); });
    expect_same([&](const Tensor& out, const Tensor& x, const Tensor& y) {
      gelu_backward(stream, out, x, y);
    });
    expect_same(
        [&](const Tensor& out, const Tensor& x, const Tensor& y) { add(stream, out, x, y); });
    expect_same([&](const Tensor& out, const Tensor& x, const Tensor&) {
      const TestTensor other(stream, dtype == DType::kF32 ? DType::kBF16 : DType::kF32,
                             {out.numel()});
      convert(stream, other, x);
      convert(stream, out, other);
    });
  }
}

TEST_P(Activation, ThreadsDoNotChangeBits) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits_for_any_threads([&](Stream& stream) {
      const auto in = TestTensor::random(stream, dtype, {10007}, 1);
      const auto dout = TestTensor::random(stream, dtype, {10007}, 2);
      const TestTensor out(stream, dtype, {10007});
      const TestTensor din(stream, dtype, {10007});
      gelu_forward(stream, out, in);
      gelu_backward(stream, din, dout, in);
      return bytes_of(out, din);
    });
  }
}

TEST(ActivationErrors, NameTheTensor) {
  Stream stream = open_stream();
  const TestTensor a(stream, DType::kF32, {3});
  const TestTensor b(stream, DType::kF32, {4});
  const TestTensor half(stream, DType::kBF16, {3});
  const TestTensor ints(stream, DType::kI32, {3});
  expect_error(ErrorKind::kInput, "[gelu_forward] out: expected 3 elements of f32, got f32 (4)",
               [&] { gelu_forward(stream, b, a); });
  expect_error(ErrorKind::kInput, "[gelu_backward] dout",
               [&] { gelu_backward(stream, a, half, a); });
  expect_error(ErrorKind::kInput,
               "[add] b: expected 3 elements of f32, "
               "got an empty tensor",
               [&] { add(stream, a, a, Tensor()); });
  expect_error(ErrorKind::kInput, "[convert] in: expected f32 or bf16",
               [&] { convert(stream, half, ints); });
}

}  // namespace
}  // namespace llmc::testing
