#include "llmc/ops/layernorm.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/isa_test.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

class LayerNorm : public IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isa, LayerNorm, ::testing::ValuesIn(available_isas()), isa_name);

constexpr float kEps = 1e-5f;

struct Sizes {
  std::int64_t N, C;
};
constexpr Sizes kSizes[] = {{1, 1},     {3, 1},     {1, 5},      {5, 16},    {7, 31},
                            {37, 64},   {67, 97},   {4, 768},    {3, 1601},  {2, 12288},
                            {21, 4096}, {19, 5000}, {11, 12288}, {2, 40001}, {2100, 17}};

/// What a layer norm works on. The mean is well away from zero.
struct Case {
  TestTensor in, dout, weight, bias;

  Case(Stream& stream, DType dtype, DType weight_type, const Sizes& s)
      : in(shifted(stream, dtype, s)),
        dout(TestTensor::random(stream, dtype, {s.N, s.C}, 12)),
        weight(TestTensor::random(stream, weight_type, {s.C}, 13)),
        bias(TestTensor::random(stream, weight_type, {s.C}, 14)) {}

  static TestTensor shifted(Stream& stream, DType dtype, const Sizes& s) {
    Values x = TestTensor::random(stream, DType::kF32, {s.N, s.C}, 11).values();
    for (double& v : x) v = 2 * v + 3;
    return {stream, dtype, {s.N, s.C}, x};
  }
};

TEST_P(LayerNorm, Forward) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const DType weight_type : kFloatTypes) {
      for (const Sizes& s : kSizes) {
        SCOPED_TRACE(concat(name_of(dtype), " ", s.N, "x", s.C));
        const Case c(stream, dtype, weight_type, s);
        const auto out = TestTensor::nan(stream, dtype, {s.N, s.C});
        const auto mean = TestTensor::nan(stream, DType::kF32, {s.N});
        const auto rstd = TestTensor::nan(stream, DType::kF32, {s.N});
        layernorm_forward(stream, out, mean, rstd, c.in, c.weight, c.bias, kEps);
        const Values x = c.in.values();
        const Values w = c.weight.values();
        const Values b = c.bias.values();
        const auto exact = layernorm_forward(Arithmetic::kExact, x, w, b, kEps);
        const auto plain = layernorm_forward(Arithmetic::kPlainBf16, x, w, b, kEps);
        expect_close("out", out, exact.out, plain.out, s.C);
        expect_close("mean", mean.values(), exact.mean, s.C);
        // A single channel has no variance to speak of; its rstd is set by eps and rounding.
        if (s.C > 1) expect_close("rstd", rstd.values(), exact.rstd, s.C);
      }
    }
  }
}

TEST_P(LayerNorm, ForwardWithoutStatisticsAndBias) {
  Stream stream = open();
  const Case c(stream, DType::kF32, DType::kF32, {5, 37});
  const TestTensor out(stream, DType::kF32, {5, 37});
  layernorm_forward(stream, out, {}, {}, c.in, c.weight, {}, kEps);
  const auto exact =
      layernorm_forward(Arithmetic::kExact, c.in.values(), c.weight.values(), {}, kEps);
  expect_close("out", out.values(), exact.out, 37);
}

TEST_P(LayerNorm, AMeanFarFromZeroDoesNotSpoilTheVariance) {
  Stream stream = open();
  Values x = TestTensor::random(stream, DType::kF32, {4, 768}, 1).values();
  for (double& v : x) v += 1000;
  const TestTensor in(stream, DType::kF32, {4, 768}, x);
  const auto one = TestTensor::filled(stream, DType::kF32, {768}, 1);
  const TestTensor out(stream, DType::kF32, {4, 768});
  layernorm_forward(stream, out, {}, {}, in, one, {}, kEps);
  const auto exact = layernorm_forward(Arithmetic::kExact, in.values(), one.values(), {}, kEps);
  const Values y = out.values();
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], exact.out[i], 2e-4);
}

TEST_P(LayerNorm, ResidualEqualsAddThenForwardAlsoInPlace) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : kSizes) {
      const Case c(stream, dtype, dtype, s);
      const auto residual = TestTensor::random(stream, dtype, {s.N, s.C}, 20);
      const TestTensor sum(stream, dtype, {s.N, s.C});
      const TestTensor out(stream, dtype, {s.N, s.C});
      const TestTensor mean(stream, DType::kF32, {s.N});
      const TestTensor rstd(stream, DType::kF32, {s.N});
      residual_layernorm_forward(stream, sum, out, mean, rstd, residual, c.in, c.weight, c.bias,
                                 kEps);
      Values exact = residual.values();
      const Values in = c.in.values();
      Values plain(exact.size());
      for (std::size_t i = 0; i < exact.size(); ++i) {
        exact[i] += in[i];
        plain[i] = stored(Arithmetic::kPlainBf16, exact[i]);
      }
      expect_close("sum", sum, exact, plain, 1);
      const TestTensor again(stream, dtype, {s.N, s.C});
      const TestTensor mean_again(stream, DType::kF32, {s.N});
      const TestTensor rstd_again(stream, DType::kF32, {s.N});
      layernorm_forward(stream, again, mean_again, rstd_again, sum, c.weight, c.bias, kEps);
      EXPECT_EQ(bytes_of(out, mean, rstd), bytes_of(again, mean_again, rstd_again));
      residual_layernorm_forward(stream, c.in, again, {}, {}, residual, c.in, c.weight, c.bias,
                                 kEps);
      EXPECT_EQ(bytes_of(c.in, again), bytes_of(sum, out));
    }
  }
}

TEST_P(LayerNorm, Backward) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(concat(name_of(dtype), " ", s.N, "x", s.C));
      const Case c(stream, dtype, dtype, s);
      const TestTensor out(stream, dtype, {s.N, s.C});
      const TestTensor mean(stream, DType::kF32, {s.N});
      const TestTensor rstd(stream, DType::kF32, {s.N});
      layernorm_forward(stream, out, mean, rstd, c.in, c.weight, c.bias, kEps);
      const auto din = TestTensor::nan(stream, dtype, {s.N, s.C});
      const auto dweight = TestTensor::nan(stream, DType::kF32, {s.C});
      const auto dbias = TestTensor::nan(stream, DType::kF32, {s.C});
      const auto scratch =
          TestTensor::scratch(stream, layernorm_backward_scratch(stream, s.N, s.C));
      layernorm_backward(stream, din, dweight, dbias, c.dout, c.in, c.weight, mean, rstd, scratch,
                         false, false);
      const Values dy = c.dout.values();
      const Values x = c.in.values();
      const Values w = c.weight.values();
      auto exact = layernorm_backward(Arithmetic::kExact, dy, x, w, kEps);
      auto plain = layernorm_backward(Arithmetic::kPlainBf16, dy, x, w, kEps);
      // With one channel everything but dbias is zero up to rounding.
      if (s.C > 1) {
        expect_close("din", din, exact.din, plain.din, s.C);
        expect_close("dweight", dweight.values(), exact.dweight, s.N + s.C);
      }
      expect_close("dbias", dbias.values(), exact.dbias, s.N);
      if (s.C == 1) continue;

      const auto onto = TestTensor::random(stream, dtype, {s.N, s.C}, 30);
      const auto weight_sum = TestTensor::random(stream, DType::kF32, {s.C}, 31);
      const auto bias_sum = TestTensor::random(stream, DType::kF32, {s.C}, 32);
      const Values before = onto.values();
      const Values weight_before = weight_sum.values();
      const Values bias_before = bias_sum.values();
      layernorm_backward(stream, onto, weight_sum, bias_sum, c.dout, c.in, c.weight, mean, rstd,
                         scratch, true, true);
      for (std::size_t i = 0; i < before.size(); ++i) {
        exact.din[i] += before[i];
        plain.din[i] = stored(Arithmetic::kPlainBf16, plain.din[i] + before[i]);
      }
      for (std::size_t i = 0; i < weight_before.size(); ++i) {
        exact.dweight[i] += weight_before[i];
        exact.dbias[i] += bias_before[i];
      }
      expect_close("din added", onto, exact.din, plain.din, s.C);
      expect_close("dweight added", weight_sum.values(), exact.dweight, s.N + s.C);
      expect_close("dbias added", bias_sum.values(), exact.dbias, s.N);
    }
  }
}

/// Everything that a forward and a backward pass write.
class BothPasses {
 public:
  BothPasses(Stream& stream, DType dtype, const Sizes& s)
      : stream_(&stream),
        out_(stream, dtype, {s.N, s.C}),
        mean_(stream, DType::kF32, {s.N}),
        rstd_(stream, DType::kF32, {s.N}),
        din_(stream, dtype, {s.N, s.C}),
        dweight_(stream, DType::kF32, {s.C}),
        dbias_(stream, DType::kF32, {s.C}),
        scratch_(TestTensor::scratch(stream, layernorm_backward_scratch(stream, s.N, s.C))) {}

  /// Runs both and returns the bytes of their results.
  std::vector<std::uint8_t> run(const Case& c) const {
    layernorm_forward(*stream_, out_, mean_, rstd_, c.in, c.weight, c.bias, kEps);
    layernorm_backward(*stream_, din_, dweight_, dbias_, c.dout, c.in, c.weight, mean_, rstd_,
                       scratch_, false, false);
    return bytes_of(out_, mean_, rstd_, din_, dweight_, dbias_);
  }

 private:
  Stream* stream_;
  TestTensor out_, mean_, rstd_, din_, dweight_, dbias_, scratch_;
};

TEST_P(LayerNorm, ThreadsDoNotChangeBits) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits_for_any_threads([&](Stream& stream) {
      const Sizes s{131, 97};
      const Case c(stream, dtype, dtype, s);
      return BothPasses(stream, dtype, s).run(c);
    });
  }
}

/// A copy of `t` that starts at element 1 of its memory, where no vector of elements is aligned.
struct Shifted {
  Shifted(Stream& stream, const TestTensor& t)
      : memory(stream, t->dtype(), {t->numel() + 1}, moved(t.values())),
        view(static_cast<const Tensor&>(memory).flat(1, t->numel()).view(t->shape())) {}

  static Values moved(Values values) {
    values.insert(values.begin(), 0.0);
    return values;
  }
  /// The bytes of the view.
  std::vector<std::uint8_t> bytes() const {
    std::vector<std::uint8_t> all = memory.bytes();
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size_of(view.dtype())));
    return all;
  }

  TestTensor memory;
  Tensor view;
};

TEST_P(LayerNorm, AddressesDoNotChangeBits) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : {Sizes{37, 64}, Sizes{9, 1600}, Sizes{5, 5120}, Sizes{3, 40000}}) {
      SCOPED_TRACE(concat(name_of(dtype), " ", s.N, "x", s.C));
      const Case c(stream, dtype, dtype, s);
      const TestTensor sum(stream, dtype, {s.N, s.C});
      const TestTensor out(stream, dtype, {s.N, s.C});
      const TestTensor mean(stream, DType::kF32, {s.N});
      const TestTensor rstd(stream, DType::kF32, {s.N});
      const TestTensor dweight(stream, DType::kF32, {s.C});
      const TestTensor dbias(stream, DType::kF32, {s.C});
      const auto scratch =
          TestTensor::scratch(stream, layernorm_backward_scratch(stream, s.N, s.C));
      const Shifted in(stream, c.in), dout(stream, c.dout), weight(stream, c.weight);
      const Shifted bias(stream, c.bias), sum1(stream, sum), out1(stream, out);
      const Shifted mean1(stream, mean), rstd1(stream, rstd), dweight1(stream, dweight);
      const Shifted dbias1(stream, dbias);

      residual_layernorm_forward(stream, sum, out, mean, rstd, c.in, c.dout, c.weight, c.bias,
                                 kEps);
      residual_layernorm_forward(stream, sum1.view, out1.view, mean1.view, rstd1.view, in.view,
                                 dout.view, weight.view, bias.view, kEps);
      EXPECT_EQ(sum1.bytes(), sum.bytes());
      EXPECT_EQ(out1.bytes(), out.bytes());
      EXPECT_EQ(mean1.bytes(), mean.bytes());
      EXPECT_EQ(rstd1.bytes(), rstd.bytes());
      layernorm_forward(stream, out1.view, {}, {}, sum, c.weight, c.bias, kEps);
      EXPECT_EQ(out1.bytes(), out.bytes());

      layernorm_backward(stream, out, dweight, dbias, c.dout, sum, c.weight, mean, rstd, scratch,
                         true, true);
      layernorm_backward(stream, out1.view, dweight1.view, dbias1.view, dout.view, sum1.view,
                         weight.view, mean1.view, rstd1.view, scratch, true, true);
      EXPECT_EQ(out1.bytes(), out.bytes());
      EXPECT_EQ(dweight1.bytes(), dweight.bytes());
      EXPECT_EQ(dbias1.bytes(), dbias.bytes());
    }
  }
}

TEST_P(LayerNorm, RepeatsBitForBit) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : {Sizes{3001, 768}, Sizes{300, 4104}}) {
      const Case c(stream, dtype, dtype, s);
      const BothPasses passes(stream, dtype, s);
      std::vector<std::uint8_t> first;
      for (int run = 0; run < 3; ++run) {
        const auto bytes = passes.run(c);
        if (run == 0) first = bytes;
        EXPECT_TRUE(bytes == first) << name_of(dtype) << ", run " << run;
      }
    }
  }
}

TEST(LayerNormErrors, NameTheTensor) {
  Stream stream = open_stream();
  const TestTensor x(stream, DType::kF32, {3, 4});
  const TestTensor w(stream, DType::kF32, {4});
  const TestTensor w5(stream, DType::kF32, {5});
  const TestTensor rows(stream, DType::kF32, {3});
  const TestTensor half(stream, DType::kBF16, {3, 4});
  expect_error(ErrorKind::kInput, "[layernorm_forward] weight: expected f32 (4), got f32 (5)",
               [&] { layernorm_forward(stream, x, {}, {}, x, w5, {}, kEps); });
  expect_error(ErrorKind::kInput, "[layernorm_forward] weight",
               [&] { layernorm_forward(stream, x, {}, {}, x, {}, {}, kEps); });
  expect_error(ErrorKind::kInput, "[layernorm_forward] out",
               [&] { layernorm_forward(stream, half, {}, {}, x, w, {}, kEps); });
  expect_error(ErrorKind::kInput, "[layernorm_backward] scratch: expected at least",
               [&] { layernorm_backward(stream, x, w, w, x, x, w, rows, rows, {}, false, false); });
  expect_error(ErrorKind::kInput, "[residual_layernorm_forward] mean",
               [&] { residual_layernorm_forward(stream, x, x, w, {}, x, x, w, {}, kEps); });
}

}  // namespace
}  // namespace llmc::testing
