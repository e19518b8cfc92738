#include "llmc/ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/ops/activation.h"
#include "support/matmul_oracle.h"

namespace llmc {
namespace {

using testing::exact_element;
using testing::ExactSum;
using testing::OwnedTensor;
using testing::sum_tolerance;

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

/// The instruction sets this processor has.
std::vector<std::string> isas() {
  std::vector<std::string> result;
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    try {
      Device::open({.threads = 1, .isa = isa});
      result.push_back(isa);
    } catch (const Error&) {
    }
  }
  return result;
}

struct Sizes {
  std::int64_t m, n, k;
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << "m=" << s.m << " n=" << s.n << " k=" << s.k;
}

// One, primes, exact tiles and one more, several blocks along each dimension, few rows.
const Sizes kSizes[] = {
    {1, 1, 1},     {1, 53, 17},  {2, 97, 64},    {3, 50, 31},     {4, 129, 200},
    {7, 5, 3},     {16, 37, 45}, {17, 19, 23},   {8, 48, 16},     {9, 49, 33},
    {31, 95, 385}, {64, 1, 5},   {65, 193, 401}, {257, 200, 770}, {300, 67, 1},
};

struct Types {
  DType c, a, b;
};
const Types kTypes[] = {
    {kF32, kF32, kF32}, {kBF16, kBF16, kBF16}, {kF32, kBF16, kF32}, {kBF16, kF32, kBF16}};

Shape stored(std::int64_t rows, std::int64_t cols, bool transposed) {
  return transposed ? Shape{cols, rows} : Shape{rows, cols};
}

class OnEveryIsa : public ::testing::TestWithParam<std::string> {
 protected:
  Device device(int threads = 2) const {
    return Device::open({.threads = threads, .isa = GetParam()});
  }
};

INSTANTIATE_TEST_SUITE_P(Isa, OnEveryIsa, ::testing::ValuesIn(isas()),
                         [](const auto& test) { return test.param; });

/// Compares c with alpha · op(a)·op(b) + beta · before at up to about `samples` elements.
void expect_product(const OwnedTensor& c, const std::vector<double>& before, const OwnedTensor& a,
                    const OwnedTensor& b, const Sizes& sizes, const MatmulOptions& options,
                    std::int64_t samples) {
  const std::int64_t count = sizes.m * sizes.n;
  const std::int64_t step = std::max<std::int64_t>(1, count / samples);
  int failures = 0;
  for (std::int64_t e = 0; e < count && failures < 3; e += step) {
    const std::int64_t i = e / sizes.n, j = e % sizes.n;
    ExactSum sum = exact_element(a, options.transpose_a, b, options.transpose_b, sizes.k, i, j);
    sum.value *= static_cast<double>(options.alpha);
    sum.magnitude *= std::abs(static_cast<double>(options.alpha));
    if (options.beta != 0.0f) {
      sum.add(static_cast<double>(options.beta) * before[static_cast<std::size_t>(e)]);
    }
    if (!(std::abs(c.at(e) - sum.value) <= sum_tolerance(sum, sizes.k, c->dtype()))) {
      ADD_FAILURE() << "element (" << i << ", " << j << "): " << c.at(e) << ", expected "
                    << sum.value;
      ++failures;
    }
  }
}

TEST_P(OnEveryIsa, MatmulEqualsTheOracle) {
  const Device dev = device();
  Stream stream(dev);
  for (const Sizes& sizes : kSizes) {
    for (const Types& types : kTypes) {
      for (int t = 0; t < 4; ++t) {
        SCOPED_TRACE(::testing::Message()
                     << sizes << " transposes " << t << " types " << name_of(types.c)
                     << name_of(types.a) << name_of(types.b));
        MatmulOptions options{.transpose_a = (t & 1) != 0, .transpose_b = (t & 2) != 0};
        OwnedTensor a(dev, types.a, stored(sizes.m, sizes.k, options.transpose_a));
        OwnedTensor b(dev, types.b, stored(sizes.k, sizes.n, options.transpose_b));
        OwnedTensor c(dev, types.c, {sizes.m, sizes.n});
        a.fill_random(1);
        b.fill_random(2);
        c.fill(std::numeric_limits<float>::quiet_NaN());  // beta = 0 must not read it
        matmul(stream, c, a, b, options);
        expect_product(c, {}, a, b, sizes, options, 200);

        options.alpha = -0.75f;
        options.beta = 0.5f;
        c.fill_random(3);
        const std::vector<double> before = c.values();
        matmul(stream, c, a, b, options);
        expect_product(c, before, a, b, sizes, options, 200);

        options.alpha = 1.0f;
        options.beta = 1.0f;
        c.fill_random(4);
        const std::vector<double> added_to = c.values();
        matmul(stream, c, a, b, options);
        expect_product(c, added_to, a, b, sizes, options, 200);
      }
    }
  }
}

// So long a sum that a cannot be packed whole, and so wide that b takes two groups of strips.
TEST_P(OnEveryIsa, MatmulOfALongSum) {
  const Sizes sizes{250, 1400, 8200};
  const Device dev = device(1);
  Stream stream(dev);
  OwnedTensor a(dev, kF32, {sizes.m, sizes.k});
  OwnedTensor b(dev, kBF16, {sizes.k, sizes.n});
  a.fill_random(1);
  b.fill_random(2);
  for (const DType type : {kF32, kBF16}) {
    OwnedTensor c(dev, type, {sizes.m, sizes.n});
    matmul(stream, c, a, b);
    expect_product(c, {}, a, b, sizes, {}, 300);
  }
}

TEST_P(OnEveryIsa, EmptySum) {
  const Device dev = device();
  Stream stream(dev);
  for (const std::int64_t m : {2, 20}) {
    OwnedTensor a(dev, kF32, {m, 0}), b(dev, kF32, {0, 7}), c(dev, kF32, {m, 7});
    c.fill(3.0f);
    matmul(stream, c, a, b, {.beta = 2.0f});
    for (std::int64_t i = 0; i < 7 * m; ++i) EXPECT_EQ(c.at(i), 6.0);
    matmul(stream, c, a, b);
    for (std::int64_t i = 0; i < 7 * m; ++i) EXPECT_EQ(c.at(i), 0.0);
  }
}

TEST_P(OnEveryIsa, ThreadsDoNotChangeBits) {
  const Sizes shapes[] = {{3, 500, 300}, {65, 193, 1000}, {257, 700, 401}, {2100, 100, 65}};
  const Device dev = device(1);
  std::vector<Stream> streams;
  for (const int threads : {1, 2, 3}) streams.emplace_back(device(threads));
  for (const Sizes& sizes : shapes) {
    for (int t = 0; t < 4; ++t) {
      for (const DType type : {kF32, kBF16}) {
        const MatmulOptions options{
            .transpose_a = (t & 1) != 0, .transpose_b = (t & 2) != 0, .beta = 0.5f};
        OwnedTensor a(dev, type, stored(sizes.m, sizes.k, options.transpose_a));
        OwnedTensor b(dev, type, stored(sizes.k, sizes.n, options.transpose_b));
        OwnedTensor c(dev, type, {sizes.m, sizes.n});
        a.fill_random(1);
        b.fill_random(2);
        std::vector<double> expected;
        for (Stream& stream : streams) {
          SCOPED_TRACE(::testing::Message() << sizes << " transposes " << t << ", "
                                            << stream.device().threads() << " threads");
          c.fill_random(3);
          matmul(stream, c, a, b, options);
          if (expected.empty()) {
            expected = c.values();
          } else {
            EXPECT_TRUE(expected == c.values());
          }
        }
      }
    }
  }
}

struct LinearSizes {
  std::int64_t n, c, oc;
};
const LinearSizes kLinearSizes[] = {{1, 64, 96}, {3, 7, 5}, {37, 50, 131}, {70, 500, 65}};

TEST_P(OnEveryIsa, LinearForward) {
  const Device dev = device();
  Stream stream(dev);
  for (const auto& [n, c, oc] : kLinearSizes) {
    for (const DType type : {kF32, kBF16}) {
      OwnedTensor in(dev, type, {n, c}), weight(dev, type, {oc, c}), bias(dev, type, {oc});
      OwnedTensor out(dev, type, {n, oc});
      in.fill_random(1);
      weight.fill_random(2);
      bias.fill_random(3);
      for (const bool with_bias : {true, false}) {
        linear_forward(stream, out, in, weight, with_bias ? bias : Tensor());
        for (std::int64_t e = 0; e < n * oc; ++e) {
          ExactSum sum = exact_element(in, false, weight, true, c, e / oc, e % oc);
          if (with_bias) sum.add(bias.at(e % oc));
          ASSERT_NEAR(out.at(e), sum.value, sum_tolerance(sum, c, type)) << e;
        }
      }
    }
  }
}

TEST_P(OnEveryIsa, LinearGeluForwardEqualsItsParts) {
  const Device dev = device();
  Stream stream(dev);
  for (const auto& [n, c, oc] : kLinearSizes) {
    for (const DType type : {kF32, kBF16}) {
      OwnedTensor in(dev, type, {n, c}), weight(dev, type, {oc, c}), bias(dev, type, {oc});
      OwnedTensor pre(dev, type, {n, oc}), out(dev, type, {n, oc}), out_only(dev, type, {n, oc});
      OwnedTensor plain(dev, type, {n, oc}), gelu(dev, type, {n, oc});
      in.fill_random(1);
      weight.fill_random(2);
      bias.fill_random(3);
      linear_gelu_forward(stream, out, pre, in, weight, bias);
      linear_gelu_forward(stream, out_only, {}, in, weight, bias);
      linear_forward(stream, plain, in, weight, bias);
      gelu_forward(stream, gelu, pre);
      EXPECT_TRUE(pre.values() == plain.values());
      EXPECT_TRUE(out.values() == gelu.values());
      EXPECT_TRUE(out.values() == out_only.values());
    }
  }
}

TEST_P(OnEveryIsa, LinearBackwardInput) {
  const Device dev = device();
  Stream stream(dev);
  for (const auto& [n, c, oc] : kLinearSizes) {
    for (const DType type : {kF32, kBF16}) {
      OwnedTensor dout(dev, type, {n, oc}), weight(dev, type, {oc, c}), din(dev, type, {n, c});
      OwnedTensor pre(dev, type, {n, c}), dpre(dev, type, {n, c});
      dout.fill_random(1);
      weight.fill_random(2);
      pre.fill_random(3);
      linear_backward_input(stream, din, dout, weight);
      linear_gelu_backward_input(stream, dpre, dout, weight, pre);
      for (std::int64_t e = 0; e < n * c; ++e) {
        ExactSum sum = exact_element(dout, false, weight, false, oc, e / c, e % c);
        ASSERT_NEAR(din.at(e), sum.value, sum_tolerance(sum, oc, type)) << e;
        const double x = pre.at(e);
        const double s = std::sqrt(2.0 / std::acos(-1.0));
        const double t = std::tanh(s * (x + 0.044715 * x * x * x));
        const double slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * s * (1 + 3 * 0.044715 * x * x);
        // The slope itself is a sum of terms of about 1.
        const double slope_error = 4 * 0x1p-24 * std::abs(sum.value);
        sum.value *= slope;
        sum.magnitude *= std::abs(slope);
        ASSERT_NEAR(dpre.at(e), sum.value, sum_tolerance(sum, oc, type) + slope_error) << e;
      }
    }
  }
}

TEST_P(OnEveryIsa, LinearBackwardWeight) {
  const Device dev = device();
  Stream stream(dev);
  for (const auto& [n, c, oc] : kLinearSizes) {
    for (const DType type : {kF32, kBF16}) {
      for (const DType grad_type : {kF32, kBF16}) {
        for (const bool accumulate : {false, true}) {
          OwnedTensor dout(dev, type, {n, oc}), in(dev, type, {n, c});
          OwnedTensor dweight(dev, grad_type, {oc, c}), dbias(dev, grad_type, {oc});
          dout.fill_random(1);
          in.fill_random(2);
          dweight.fill_random(3);
          dbias.fill_random(4);
          const std::vector<double> w0 = dweight.values(), b0 = dbias.values();
          if (!accumulate) {
            dweight.fill(std::numeric_limits<float>::quiet_NaN());
            dbias.fill(std::numeric_limits<float>::quiet_NaN());
          }
          linear_backward_weight(stream, dweight, dbias, dout, in, accumulate);
          for (std::int64_t e = 0; e < oc * c; ++e) {
            ExactSum sum = exact_element(dout, true, in, false, n, e / c, e % c);
            if (accumulate) sum.add(w0[static_cast<std::size_t>(e)]);
            ASSERT_NEAR(dweight.at(e), sum.value, sum_tolerance(sum, n, grad_type)) << e;
          }
          for (std::int64_t j = 0; j < oc; ++j) {
            ExactSum sum;
            for (std::int64_t i = 0; i < n; ++i) sum.add(dout.at(i * oc + j));
            if (accumulate) sum.add(b0[static_cast<std::size_t>(j)]);
            ASSERT_NEAR(dbias.at(j), sum.value, sum_tolerance(sum, n, grad_type)) << j;
          }
        }
      }
    }
  }
}

TEST(Linear, RefusesWrongShapesAndTypes) {
  const Device dev = Device::open();
  Stream stream(dev);
  OwnedTensor in(dev, kF32, {4, 8}), weight(dev, kF32, {6, 8}), out(dev, kF32, {4, 6});
  OwnedTensor bias(dev, kF32, {6}), wrong(dev, kF32, {5, 8}), tokens(dev, DType::kI32, {4, 8});
  EXPECT_THROW(matmul(stream, out, in, weight), Error);
  EXPECT_THROW(matmul(stream, in, in, weight, {.transpose_b = true}), Error);
  EXPECT_THROW(linear_forward(stream, out, wrong, weight, bias), Error);
  EXPECT_THROW(linear_forward(stream, out, tokens, weight, bias), Error);
  EXPECT_THROW(linear_forward(stream, out, in, weight, in), Error);
  EXPECT_THROW(linear_gelu_forward(stream, out, in, in, weight, bias), Error);
  EXPECT_THROW(linear_backward_input(stream, wrong, out, weight), Error);
  EXPECT_THROW(linear_gelu_backward_input(stream, in, out, weight, out), Error);
  EXPECT_THROW(linear_backward_weight(stream, weight, in, out, in, false), Error);
  EXPECT_THROW(linear_backward_weight(stream, weight, bias, wrong, in, false), Error);
  try {
    linear_forward(stream, out, wrong, weight, bias);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_NE(std::string(error.what()).find("out: expected (5, 6)"), std::string::npos);
  }
}

}  // namespace
}  // namespace llmc
