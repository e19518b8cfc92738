#include "llmc/ops/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/ops/activation.h"
#include "ops/isa_test.h"
#include "support/matmul_oracle.h"
#include "support/oracle.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::addition_tolerance;
using testing::bytes_of;
using testing::ExactSum;
using testing::expect_error;
using testing::kFloatTypes;
using testing::product_element;
using testing::StoredMatrix;
using testing::sum_tolerance;
using testing::TestTensor;
using testing::Values;

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

using LinearTest = testing::IsaTest;
INSTANTIATE_TEST_SUITE_P(Isa, LinearTest, ::testing::ValuesIn(testing::available_isas()),
                         testing::isa_name);

double at(const Values& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

struct Sizes {
  std::int64_t m, n, k;
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << "m=" << s.m << " n=" << s.n << " k=" << s.k;
}

// One, primes, exact tiles and one more, several blocks along each dimension, few rows, no depth.
const Sizes kSizes[] = {
    {1, 1, 1},  {1, 53, 17},  {2, 97, 64},   {3, 50, 31},    {4, 129, 200},   {7, 5, 3},
    {5, 7, 0},  {20, 7, 0},   {16, 37, 45},  {8, 48, 16},    {9, 49, 33},     {17, 19, 23},
    {64, 1, 5}, {300, 67, 1}, {31, 95, 385}, {65, 193, 401}, {257, 200, 770}, {256, 384, 512},
};

struct Types {
  DType c, a, b;
};
const Types kTypes[] = {
    {kF32, kF32, kF32}, {kBF16, kBF16, kBF16}, {kF32, kBF16, kF32}, {kBF16, kF32, kBF16}};

/// The two inputs of a product, random, transposed as bits 0 and 1 of `transposes` say.
struct Inputs {
  Inputs(Stream& stream, const Sizes& sizes, DType a_type, DType b_type, int transposes)
      : options{.transpose_a = (transposes & 1) != 0, .transpose_b = (transposes & 2) != 0},
        a(TestTensor::random(
            stream, a_type, options.transpose_a ? Shape{sizes.k, sizes.m} : Shape{sizes.m, sizes.k},
            1)),
        b(TestTensor::random(
            stream, b_type, options.transpose_b ? Shape{sizes.n, sizes.k} : Shape{sizes.k, sizes.n},
            2)) {}
  MatmulOptions options;
  TestTensor a, b;
};

/// Compares c with alpha · a·b + beta · before at about `samples` elements.
void expect_product(const TestTensor& c, const Values& before, const Inputs& inputs,
                    const MatmulOptions& options, const Sizes& sizes, std::int64_t samples = 200) {
  const StoredMatrix a{inputs.a.values(), inputs.a->dim(1), options.transpose_a};
  const StoredMatrix b{inputs.b.values(), inputs.b->dim(1), options.transpose_b};
  const Values actual = c.values();
  const std::int64_t count = sizes.m * sizes.n;
  for (std::int64_t e = 0; e < count; e += std::max<std::int64_t>(1, count / samples)) {
    ExactSum sum = product_element(a, b, sizes.k, e / sizes.n, e % sizes.n);
    sum.scale(static_cast<double>(options.alpha));
    double tolerance = 0;
    if (options.beta != 0.0f) {
      tolerance = addition_tolerance(sum.value, c->dtype());
      sum.add(static_cast<double>(options.beta) * at(before, e));
    }
    tolerance += sum_tolerance(sum, sizes.k, c->dtype());
    ASSERT_NEAR(at(actual, e), sum.value, tolerance)
        << "element (" << e / sizes.n << ", " << e % sizes.n << ")";
  }
}

TEST_P(LinearTest, MatmulEqualsTheOracle) {
  Stream stream = open();
  for (const Sizes& sizes : kSizes) {
    for (const Types& types : kTypes) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        SCOPED_TRACE(::testing::Message()
                     << sizes << " transposes " << transposes << " types " << name_of(types.c)
                     << " " << name_of(types.a) << " " << name_of(types.b));
        const Inputs inputs(stream, sizes, types.a, types.b, transposes);
        const Shape shape{sizes.m, sizes.n};
        MatmulOptions options = inputs.options;
        const TestTensor c = TestTensor::nan(stream, types.c, shape);  // not to be read
        matmul(stream, c, inputs.a, inputs.b, options);
        expect_product(c, {}, inputs, options, sizes);

        for (const auto& [alpha, beta] : {std::pair{-0.75f, 0.5f}, {1.0f, 1.0f}}) {
          options.alpha = alpha;
          options.beta = beta;
          const TestTensor sum = TestTensor::random(stream, types.c, shape, 3);
          const Values before = sum.values();
          matmul(stream, sum, inputs.a, inputs.b, options);
          expect_product(sum, before, inputs, options, sizes);
        }
      }
    }
  }
}

// Inputs too large to be packed for all tasks, by size and by the number of depth blocks.
TEST_P(LinearTest, MatmulOfALongSum) {
  Stream stream = open();
  const auto check = [&](const Sizes& sizes, int transposes) {
    SCOPED_TRACE(sizes);
    const Inputs inputs(stream, sizes, kF32, kBF16, transposes);
    for (const DType type : kFloatTypes) {
      const TestTensor c = TestTensor::nan(stream, type, {sizes.m, sizes.n});
      matmul(stream, c, inputs.a, inputs.b, inputs.options);
      expect_product(c, {}, inputs, inputs.options, sizes);
    }
  };
  check({250, 260, 17000}, 0);
  check({3, 5, 150000}, 1);
}

/// A random matrix that starts one element after an aligned address.
struct ShiftedMatrix {
  ShiftedMatrix(Stream& stream, DType type, Shape shape, std::uint32_t seed)
      : storage(TestTensor::random(stream, type, {shape.numel() + 1}, seed)),
        view(storage->flat(1, shape.numel()).view(shape)) {}
  Values values() const {
    Values all = storage.values();
    all.erase(all.begin());
    return all;
  }
  TestTensor storage;
  Tensor view;
};

TEST_P(LinearTest, ViewsCanStartAtAnyElement) {
  Stream stream = open();
  const std::int64_t n = 24, c = 64, oc = 40;
  for (const DType type : kFloatTypes) {
    SCOPED_TRACE(name_of(type));
    const ShiftedMatrix in(stream, type, {n, c}, 1), weight(stream, type, {oc, c}, 2);
    const ShiftedMatrix bias(stream, type, {oc}, 3), out(stream, type, {n, oc}, 4);
    linear_forward(stream, out.view, in.view, weight.view, bias.view);
    const Values dout = out.values();  // the outputs serve as gradients too
    const StoredMatrix a{in.values(), c, false}, b{weight.values(), c, true};
    for (std::int64_t e = 0; e < n * oc; ++e) {
      ExactSum sum = product_element(a, b, c, e / oc, e % oc);
      sum.add(at(bias.values(), e % oc));
      ASSERT_NEAR(at(dout, e), sum.value, sum_tolerance(sum, c, type)) << e;
    }
    const ShiftedMatrix dweight(stream, kF32, {oc, c}, 5), dbias(stream, kF32, {oc}, 6);
    const Values weight_before = dweight.values(), bias_before = dbias.values();
    linear_backward_weight(stream, dweight.view, dbias.view, out.view, in.view, true);
    const StoredMatrix grad{dout, oc, true};
    const Values weight_after = dweight.values(), bias_after = dbias.values();
    for (std::int64_t e = 0; e < oc * c; ++e) {
      ExactSum sum = product_element(grad, a, n, e / c, e % c);
      sum.add(at(weight_before, e));
      ASSERT_NEAR(at(weight_after, e), sum.value, sum_tolerance(sum, n, kF32)) << e;
    }
    for (std::int64_t j = 0; j < oc; ++j) {
      ExactSum sum;
      for (std::int64_t i = 0; i < n; ++i) sum.add(grad.at(j, i));
      sum.add(at(bias_before, j));
      ASSERT_NEAR(at(bias_after, j), sum.value, sum_tolerance(sum, n, kF32)) << j;
    }
  }
}

TEST_P(LinearTest, ThreadsDoNotChangeBits) {
  for (const Sizes& sizes :
       {Sizes{3, 500, 300}, {65, 193, 1000}, {257, 700, 401}, {2100, 100, 65}}) {
    for (const DType type : kFloatTypes) {
      SCOPED_TRACE(::testing::Message() << sizes << " " << name_of(type));
      expect_same_bits_for_any_threads([&](Stream& stream) {
        std::vector<std::uint8_t> all;
        for (int transposes = 0; transposes < 4; ++transposes) {
          const Inputs inputs(stream, sizes, type, type, transposes);
          MatmulOptions options = inputs.options;
          options.beta = 0.5f;
          const TestTensor c = TestTensor::random(stream, type, {sizes.m, sizes.n}, 3);
          matmul(stream, c, inputs.a, inputs.b, options);
          const std::vector<std::uint8_t> bytes = bytes_of(c);
          all.insert(all.end(), bytes.begin(), bytes.end());
        }
        return all;
      });
    }
  }
}

struct LinearSizes {
  std::int64_t n, c, oc;
};
const LinearSizes kLinearSizes[] = {{1, 64, 96}, {3, 7, 5}, {37, 50, 131}, {70, 500, 65}};

TEST_P(LinearTest, Forward) {
  Stream stream = open();
  for (const auto& [n, c, oc] : kLinearSizes) {
    for (const DType type : kFloatTypes) {
      const TestTensor in = TestTensor::random(stream, type, {n, c}, 1);
      const TestTensor weight = TestTensor::random(stream, type, {oc, c}, 2);
      const TestTensor bias = TestTensor::random(stream, type, {oc}, 3);
      const StoredMatrix a{in.values(), c, false}, b{weight.values(), c, true};
      for (const bool with_bias : {true, false}) {
        const TestTensor out = TestTensor::nan(stream, type, {n, oc});
        linear_forward(stream, out, in, weight, with_bias ? bias : Tensor());
        const Values actual = out.values(), added = bias.values();
        for (std::int64_t e = 0; e < n * oc; ++e) {
          ExactSum sum = product_element(a, b, c, e / oc, e % oc);
          const double tolerance = with_bias ? addition_tolerance(sum.value, type) : 0.0;
          if (with_bias) sum.add(at(added, e % oc));
          ASSERT_NEAR(at(actual, e), sum.value, tolerance + sum_tolerance(sum, c, type)) << e;
        }
      }
    }
  }
}

TEST_P(LinearTest, GeluForwardEqualsItsParts) {
  Stream stream = open();
  for (const auto& [n, c, oc] : kLinearSizes) {
    for (const DType type : kFloatTypes) {
      const Shape shape{n, oc};
      const TestTensor in = TestTensor::random(stream, type, {n, c}, 1);
      const TestTensor weight = TestTensor::random(stream, type, {oc, c}, 2);
      const TestTensor bias = TestTensor::random(stream, type, {oc}, 3);
      const TestTensor pre = TestTensor::nan(stream, type, shape);
      const TestTensor out = TestTensor::nan(stream, type, shape);
      const TestTensor out_only = TestTensor::nan(stream, type, shape);
      const TestTensor plain = TestTensor::nan(stream, type, shape);
      const TestTensor gelu = TestTensor::nan(stream, type, shape);
      linear_gelu_forward(stream, out, pre, in, weight, bias);
      linear_gelu_forward(stream, out_only, {}, in, weight, bias);
      linear_forward(stream, plain, in, weight, bias);
      gelu_forward(stream, gelu, pre);
      EXPECT_EQ(pre.values(), plain.values());
      EXPECT_EQ(out.bytes(), gelu.bytes());
      EXPECT_EQ(out.bytes(), out_only.bytes());
    }
  }
}

TEST_P(LinearTest, BackwardInput) {
  Stream stream = open();
  for (const auto& [n, c, oc] : kLinearSizes) {
    for (const DType type : kFloatTypes) {
      const TestTensor dout = TestTensor::random(stream, type, {n, oc}, 1);
      const TestTensor weight = TestTensor::random(stream, type, {oc, c}, 2);
      const TestTensor pre = TestTensor::random(stream, type, {n, c}, 3);
      const TestTensor din = TestTensor::nan(stream, type, {n, c});
      const TestTensor dpre = TestTensor::nan(stream, type, {n, c});
      linear_backward_input(stream, din, dout, weight);
      linear_gelu_backward_input(stream, dpre, {}, {}, dout, weight, pre, false);
      const StoredMatrix a{dout.values(), oc, false}, b{weight.values(), c, false};
      const Values plain = din.values(), with_gelu = dpre.values(), x = pre.values();
      for (std::int64_t e = 0; e < n * c; ++e) {
        ExactSum sum = product_element(a, b, oc, e / c, e % c);
        ASSERT_NEAR(at(plain, e), sum.value, sum_tolerance(sum, oc, type)) << e;
        // The slope is itself a sum of terms of about 1, rounded.
        const double slope_error = 4 * 0x1p-24 * std::abs(sum.value);
        sum.scale(testing::gelu_gradient(at(x, e)));
        const double product_rounding = type == kBF16 ? 0x1p-8 * std::abs(sum.value) : 0.0;
        ASSERT_NEAR(at(with_gelu, e), sum.value,
                    sum_tolerance(sum, oc, type) + slope_error + product_rounding)
            << e;
      }
    }
  }
}

// Rows for more than one part of the sums, and columns that end inside a vector.
TEST_P(LinearTest, GeluBackwardInputSumsItsColumns) {
  Stream stream = open();
  for (const auto& [n, c] : {std::pair<std::int64_t, std::int64_t>{3, 7}, {300, 520}, {150, 261}}) {
    for (const DType type : kFloatTypes) {
      for (const DType grad_type : kFloatTypes) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(::testing::Message() << n << " " << c << " " << name_of(type) << " "
                                            << name_of(grad_type) << " " << accumulate);
          const TestTensor dout = TestTensor::random(stream, type, {n, 5}, 1);
          const TestTensor weight = TestTensor::random(stream, type, {5, c}, 2);
          const TestTensor pre = TestTensor::random(stream, type, {n, c}, 3);
          const TestTensor alone = TestTensor::nan(stream, type, {n, c});
          const TestTensor dpre = TestTensor::nan(stream, type, {n, c});
          const TestTensor dbias = accumulate ? TestTensor::random(stream, grad_type, {c}, 4)
                                              : TestTensor::nan(stream, grad_type, {c});
          const Values before = dbias.values();
          linear_gelu_backward_input(stream, alone, {}, {}, dout, weight, pre, false);
          linear_gelu_backward_input(stream, dpre, {}, dbias, dout, weight, pre, accumulate);
          EXPECT_EQ(dpre.bytes(), alone.bytes());
          const Values d = dpre.values(), actual = dbias.values();
          for (std::int64_t j = 0; j < c; ++j) {
            ExactSum sum;
            for (std::int64_t i = 0; i < n; ++i) sum.add(at(d, i * c + j));
            if (accumulate) sum.add(at(before, j));
            ASSERT_NEAR(at(actual, j), sum.value, sum_tolerance(sum, n, grad_type)) << j;
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, GeluBackwardInputAlsoGivesGelu) {
  Stream stream = open();
  for (const auto& [n, c] : {std::pair<std::int64_t, std::int64_t>{3, 7}, {300, 520}, {150, 261}}) {
    for (const DType type : kFloatTypes) {
      SCOPED_TRACE(::testing::Message() << n << " " << c << " " << name_of(type));
      const TestTensor dout = TestTensor::random(stream, type, {n, 5}, 1);
      const TestTensor weight = TestTensor::random(stream, type, {5, c}, 2);
      const TestTensor pre = TestTensor::random(stream, type, {n, c}, 3, 2.0);
      const TestTensor alone = TestTensor::nan(stream, type, {n, c});
      const TestTensor alone_dbias = TestTensor::nan(stream, kF32, {c});
      const TestTensor expected = TestTensor::nan(stream, type, {n, c});
      linear_gelu_backward_input(stream, alone, {}, alone_dbias, dout, weight, pre, false);
      gelu_forward(stream, expected, pre);
      for (const bool with_bias : {false, true}) {
        const TestTensor dpre = TestTensor::nan(stream, type, {n, c});
        const TestTensor gelu = TestTensor::nan(stream, type, {n, c});
        const TestTensor dbias = TestTensor::nan(stream, kF32, {c});
        linear_gelu_backward_input(stream, dpre, gelu, with_bias ? Tensor(dbias) : Tensor(), dout,
                                   weight, pre, false);
        EXPECT_EQ(dpre.bytes(), alone.bytes());
        EXPECT_EQ(gelu.bytes(), expected.bytes());
        if (with_bias) {
          EXPECT_EQ(dbias.bytes(), alone_dbias.bytes());
        }
      }
    }
  }
}

TEST_P(LinearTest, BackwardWeight) {
  Stream stream = open();
  for (const auto& [n, c, oc] : kLinearSizes) {
    for (const DType type : kFloatTypes) {
      const TestTensor dout = TestTensor::random(stream, type, {n, oc}, 1);
      const TestTensor in = TestTensor::random(stream, type, {n, c}, 2);
      const StoredMatrix a{dout.values(), oc, true}, b{in.values(), c, false};
      for (const DType grad_type : kFloatTypes) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(::testing::Message() << n << " " << c << " " << oc << " " << name_of(type)
                                            << " " << name_of(grad_type) << " " << accumulate);
          const auto start = [&](Shape shape, std::uint32_t seed) {
            return accumulate ? TestTensor::random(stream, grad_type, shape, seed)
                              : TestTensor::nan(stream, grad_type, shape);
          };
          const TestTensor dweight = start({oc, c}, 3), dbias = start({oc}, 4);
          const Values weight_before = dweight.values(), bias_before = dbias.values();
          linear_backward_weight(stream, dweight, dbias, dout, in, accumulate);
          const Values weight_after = dweight.values(), bias_after = dbias.values();
          for (std::int64_t e = 0; e < oc * c; ++e) {
            ExactSum sum = product_element(a, b, n, e / c, e % c);
            if (accumulate) sum.add(at(weight_before, e));
            ASSERT_NEAR(at(weight_after, e), sum.value, sum_tolerance(sum, n, grad_type)) << e;
          }
          for (std::int64_t j = 0; j < oc; ++j) {
            ExactSum sum;
            for (std::int64_t i = 0; i < n; ++i) sum.add(a.at(j, i));
            if (accumulate) sum.add(at(bias_before, j));
            ASSERT_NEAR(at(bias_after, j), sum.value, sum_tolerance(sum, n, grad_type)) << j;
          }
        }
      }
    }
  }
}

// The column sums are taken in parts of rows; those of four micro-steps add up in fp32.
TEST(Linear, BiasGradientsOfWideLayersAddUpOverMicroSteps) {
  Stream stream = testing::open_stream();
  const std::int64_t n = 141, c = 1;
  for (const auto& [oc, type] : {std::pair<std::int64_t, DType>{8512, kBF16}, {9001, kF32}}) {
    SCOPED_TRACE(oc);
    const TestTensor in = TestTensor::random(stream, type, {n, c}, 1);
    const TestTensor dweight = TestTensor::nan(stream, kF32, {oc, c});
    const TestTensor dbias = TestTensor::nan(stream, kF32, {oc});
    std::vector<ExactSum> exact(static_cast<std::size_t>(oc));
    for (std::uint32_t step = 0; step < 4; ++step) {
      const TestTensor dout = TestTensor::random(stream, type, {n, oc}, 2 + step);
      linear_backward_weight(stream, dweight, dbias, dout, in, step > 0);
      const Values values = dout.values();
      for (std::int64_t e = 0; e < n * oc; ++e) {
        exact[static_cast<std::size_t>(e % oc)].add(at(values, e));
      }
    }
    const Values actual = dbias.values();
    for (std::int64_t j = 0; j < oc; ++j) {
      const ExactSum& sum = exact[static_cast<std::size_t>(j)];
      ASSERT_NEAR(at(actual, j), sum.value, sum_tolerance(sum, 4 * n, kF32)) << j;
    }
  }
}

TEST(Linear, RefusesWrongShapesAndTypes) {
  Stream s = testing::open_stream();
  const TestTensor in(s, kF32, {4, 8}), weight(s, kF32, {6, 8}), out(s, kF32, {4, 6});
  const TestTensor bias(s, kF32, {6}), wrong(s, kF32, {5, 8}), tokens(s, DType::kI32, {4, 8});
  expect_error(ErrorKind::kInput, "b: expected (8, 8), got (6, 8)",
               [&] { matmul(s, out, in, weight); });
  expect_error(ErrorKind::kInput, "c: expected (4, 6), got (4, 8)",
               [&] { matmul(s, in, in, weight, {.transpose_b = true}); });
  expect_error(ErrorKind::kInput, "out: expected (5, 6), got (4, 6)",
               [&] { linear_forward(s, out, wrong, weight, bias); });
  expect_error(ErrorKind::kInput, "in: expected f32 or bf16, got i32",
               [&] { linear_forward(s, out, tokens, weight, bias); });
  expect_error(ErrorKind::kInput, "bias: expected (6)",
               [&] { linear_forward(s, out, in, weight, in); });
  expect_error(ErrorKind::kInput, "pre: expected (4, 6)",
               [&] { linear_gelu_forward(s, out, in, in, weight, bias); });
  const TestTensor half(s, kBF16, {4, 6});
  expect_error(ErrorKind::kInput, "pre: expected f32, got bf16",
               [&] { linear_gelu_forward(s, out, half, in, weight, bias); });
  expect_error(ErrorKind::kInput, "din: expected (4, 8)",
               [&] { linear_backward_input(s, wrong, out, weight); });
  expect_error(ErrorKind::kInput, "pre: expected (4, 8)",
               [&] { linear_gelu_backward_input(s, in, {}, {}, out, weight, out, false); });
  expect_error(ErrorKind::kInput, "gelu: expected (4, 8)",
               [&] { linear_gelu_backward_input(s, in, out, {}, out, weight, in, false); });
  const TestTensor half_in(s, kBF16, {4, 8});
  expect_error(ErrorKind::kInput, "gelu: expected f32, got bf16",
               [&] { linear_gelu_backward_input(s, in, half_in, {}, out, weight, in, false); });
  expect_error(ErrorKind::kInput, "dbias: expected (8)",
               [&] { linear_gelu_backward_input(s, in, {}, bias, out, weight, in, false); });
  expect_error(ErrorKind::kInput, "dbias: expected (6)",
               [&] { linear_backward_weight(s, weight, in, out, in, false); });
  expect_error(ErrorKind::kInput, "dout: expected (5, 6)",
               [&] { linear_backward_weight(s, weight, bias, wrong, in, false); });
}

}  // namespace
}  // namespace llmc
