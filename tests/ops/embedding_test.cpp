#include "llmc/ops/embedding.h"

#include <algorithm>
#include <cmath>

#include "ops/isa_test.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

class Embedding : public IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isa, Embedding, ::testing::ValuesIn(available_isas()), isa_name);

struct Sizes {
  std::int64_t B, T, C, V, max_T;
};
constexpr Sizes kSizes[] = {
    {1, 1, 1, 1, 1}, {2, 5, 7, 11, 5}, {3, 17, 64, 29, 24}, {4, 8, 193, 5, 9}, {2, 3, 768, 50, 64}};

/// Tokens with many repetitions; the last one of the vocabulary is never used.
Values some_tokens(const Sizes& s) {
  Values tokens(static_cast<std::size_t>(s.B * s.T));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<double>((i * i + 3 * i) %
                                    static_cast<std::size_t>(std::max<std::int64_t>(1, s.V - 1)));
  }
  return tokens;
}

TEST_P(Embedding, Forward) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : kSizes) {
      const Values token = some_tokens(s);
      const TestTensor tokens(stream, DType::kI32, {s.B, s.T}, token);
      const auto wte = TestTensor::random(stream, dtype, {s.V, s.C}, 1);
      const auto wpe = TestTensor::random(stream, dtype, {s.max_T, s.C}, 2);
      const Values te = wte.values();
      const Values pe = wpe.values();
      for (const std::int64_t first : {std::int64_t{0}, s.max_T - s.T}) {
        const auto out = TestTensor::nan(stream, dtype, {s.B, s.T, s.C});
        embedding_forward(stream, out, tokens, wte, wpe, first);
        Values exact(out.values().size());
        for (std::size_t i = 0; i < exact.size(); ++i) {
          const auto C = static_cast<std::size_t>(s.C);
          const std::size_t row = i / C;
          const auto position =
              static_cast<std::size_t>(first) + row % static_cast<std::size_t>(s.T);
          exact[i] =
              te[static_cast<std::size_t>(token[row]) * C + i % C] + pe[position * C + i % C];
        }
        Values plain = exact;
        for (double& x : plain) x = stored(Arithmetic::kPlainBf16, x);
        expect_close("out", out, exact, plain, 1);
      }
      const auto alone = TestTensor::nan(stream, dtype, {s.B, s.T, s.C});
      embedding_forward(stream, alone, tokens, wte, {}, 12345);
      const Values y = alone.values();
      for (std::size_t i = 0; i < y.size(); ++i) {
        const auto C = static_cast<std::size_t>(s.C);
        EXPECT_EQ(y[i], te[static_cast<std::size_t>(token[i / C]) * C + i % C]);
      }
    }
  }
}

// One token a row, at positions in any order.
TEST_P(Embedding, ForwardAtPositions) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : kSizes) {
      const auto wte = TestTensor::random(stream, dtype, {s.V, s.C}, 1);
      const auto wpe = TestTensor::random(stream, dtype, {s.max_T, s.C}, 2);
      Values token, position;
      for (std::int64_t b = 0; b < s.B; ++b) {
        token.push_back(static_cast<double>((3 * b + 1) % s.V));
        position.push_back(static_cast<double>((s.max_T - 1 - 2 * b + s.max_T * s.B) % s.max_T));
      }
      const TestTensor tokens(stream, DType::kI32, {s.B, 1}, token);
      const TestTensor positions(stream, DType::kI32, {s.B}, position);
      const auto out = TestTensor::nan(stream, dtype, {s.B, 1, s.C});
      embedding_forward_at(stream, out, tokens, wte, wpe, positions);
      for (std::int64_t b = 0; b < s.B; ++b) {
        const auto row = static_cast<std::size_t>(b);
        const TestTensor one(stream, DType::kI32, {1, 1}, {token[row]});
        const auto expected = TestTensor::nan(stream, dtype, {1, 1, s.C});
        embedding_forward(stream, expected, one, wte, wpe,
                          static_cast<std::int64_t>(position[row]));
        const Values all = out.values();
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(b * s.C);
        EXPECT_EQ(Values(begin, begin + static_cast<std::ptrdiff_t>(s.C)), expected.values());
      }
      const auto alone = TestTensor::nan(stream, dtype, {s.B, 1, s.C});
      embedding_forward_at(stream, alone, tokens, wte, {}, positions);
      EXPECT_EQ(alone.values()[0],
                wte.values()[static_cast<std::size_t>(token[0]) * static_cast<std::size_t>(s.C)]);
    }
  }
}

TEST_P(Embedding, Backward) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : kSizes) {
      for (const bool accumulate : {false, true}) {
        const Values token = some_tokens(s);
        const TestTensor tokens(stream, DType::kI32, {s.B, s.T}, token);
        const auto dout = TestTensor::random(stream, dtype, {s.B, s.T, s.C}, 3);
        const auto dwte = TestTensor::random(stream, DType::kF32, {s.V, s.C}, 4);
        const auto dwpe = accumulate ? TestTensor::random(stream, DType::kF32, {s.max_T, s.C}, 5)
                                     : TestTensor::nan(stream, DType::kF32, {s.max_T, s.C});
        Values te = dwte.values();
        Values pe = accumulate ? dwpe.values() : Values(static_cast<std::size_t>(s.max_T * s.C));
        const Values te_before = te;
        const auto scratch =
            TestTensor::scratch(stream, embedding_backward_scratch(stream, s.B, s.T, s.C));
        embedding_backward(stream, dwte, dwpe, dout, tokens, scratch, accumulate);
        const Values dy = dout.values();
        const auto C = static_cast<std::size_t>(s.C);
        for (std::size_t i = 0; i < dy.size(); ++i) {
          const std::size_t row = i / C;
          te[static_cast<std::size_t>(token[row]) * C + i % C] += dy[i];
          pe[row % static_cast<std::size_t>(s.T) * C + i % C] += dy[i];
        }
        expect_close("dwte", dwte.values(), te, s.B * s.T);
        expect_close("dwpe", dwpe.values(), pe, s.B);
        if (s.V > 1) {  // the unused token's row is untouched
          const Values after = dwte.values();
          const auto unused = static_cast<std::ptrdiff_t>((s.V - 1) * s.C);
          EXPECT_TRUE(std::equal(after.begin() + unused, after.end(), te_before.begin() + unused));
        }
        if (!accumulate) {  // unused positions have no gradient
          const Values after = dwpe.values();
          EXPECT_TRUE(std::all_of(after.begin() + static_cast<std::ptrdiff_t>(s.T * s.C),
                                  after.end(), [](double x) { return x == 0; }));
        }
      }
    }
  }
}

TEST_P(Embedding, BackwardOfOneTokenEverywhere) {
  Stream stream = open();
  const Sizes s{64, 1024, 24, 50304, 1024};
  constexpr double kToken = 50256;
  for (const DType dtype : kFloatTypes) {
    const auto tokens = TestTensor::filled(stream, DType::kI32, {s.B, s.T}, kToken);
    const auto dout = TestTensor::random(stream, dtype, {s.B, s.T, s.C}, 3);
    const TestTensor dwte(stream, DType::kF32, {s.V, s.C});
    const auto scratch =
        TestTensor::scratch(stream, embedding_backward_scratch(stream, s.B, s.T, s.C));
    embedding_backward(stream, dwte, {}, dout, tokens, scratch, false);
    Values sum(static_cast<std::size_t>(s.C));
    const Values dy = dout.values();
    for (std::size_t i = 0; i < dy.size(); ++i) sum[i % sum.size()] += dy[i];
    Values exact(static_cast<std::size_t>(s.V * s.C));
    std::copy(sum.begin(), sum.end(), exact.begin() + static_cast<std::ptrdiff_t>(kToken) * s.C);
    expect_close("dwte", dwte.values(), exact, s.B * s.T);
  }
}

TEST_P(Embedding, BackwardOfFourMicroStepsAddsUp) {
  Stream stream = open();
  const Sizes s{3, 200, 40, 6, 210};
  const auto value_count = static_cast<std::size_t>(s.C);
  const TestTensor dwte(stream, DType::kF32, {s.V, s.C});
  const auto dwpe = TestTensor::nan(stream, DType::kF32, {s.max_T, s.C});
  Values te(static_cast<std::size_t>(s.V * s.C));
  Values pe(static_cast<std::size_t>(s.max_T * s.C));
  const auto scratch =
      TestTensor::scratch(stream, embedding_backward_scratch(stream, s.B, s.T, s.C));
  const Values token = some_tokens(s);
  const TestTensor tokens(stream, DType::kI32, {s.B, s.T}, token);
  for (std::uint32_t step = 0; step < 4; ++step) {
    const auto dout = TestTensor::random(stream, DType::kBF16, {s.B, s.T, s.C}, step);
    embedding_backward(stream, dwte, dwpe, dout, tokens, scratch, step > 0);
    const Values dy = dout.values();
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const std::size_t row = i / value_count;
      te[static_cast<std::size_t>(token[row]) * value_count + i % value_count] += dy[i];
      pe[row % static_cast<std::size_t>(s.T) * value_count + i % value_count] += dy[i];
    }
  }
  expect_close("dwte", dwte.values(), te, 4 * s.B * s.T);
  expect_close("dwpe", dwpe.values(), pe, 4 * s.B);
}

TEST_P(Embedding, VectorsMayStartAtAnyElement) {
  Stream stream = open();
  const Sizes s{2, 3, 16, 5, 3};
  const Values token = some_tokens(s);
  const TestTensor tokens(stream, DType::kI32, {s.B, s.T}, token);
  const auto shifted = [](const TestTensor& t, Shape shape) {
    return Tensor(t).flat(1, shape.numel()).view(shape);
  };
  for (const DType dtype : kFloatTypes) {
    const auto wte = TestTensor::random(stream, dtype, {1 + s.V * s.C}, 1);
    const TestTensor out(stream, dtype, {1 + s.B * s.T * s.C});
    embedding_forward(stream, shifted(out, {s.B, s.T, s.C}), tokens, shifted(wte, {s.V, s.C}), {});
    const TestTensor dwte(stream, DType::kF32, {1 + s.V * s.C});
    const auto scratch =
        TestTensor::scratch(stream, embedding_backward_scratch(stream, s.B, s.T, s.C));
    embedding_backward(stream, shifted(dwte, {s.V, s.C}), {}, shifted(out, {s.B, s.T, s.C}), tokens,
                       scratch, false);
    Values exact(static_cast<std::size_t>(1 + s.V * s.C));
    const Values vectors = wte.values();
    const Values y = out.values();
    const auto C = static_cast<std::size_t>(s.C);
    for (std::size_t i = 0; i + 1 < y.size(); ++i) {
      const std::size_t from = static_cast<std::size_t>(token[i / C]) * C + i % C;
      EXPECT_EQ(y[1 + i], vectors[1 + from]) << i;
      exact[1 + from] += vectors[1 + from];
    }
    expect_close("dwte", dwte.values(), exact, s.B * s.T);
  }
}

TEST_P(Embedding, ThreadsDoNotChangeBits) {
  expect_same_bits_for_any_threads([](Stream& stream) {
    const Sizes s{4, 33, 193, 7, 40};
    const TestTensor tokens(stream, DType::kI32, {s.B, s.T}, some_tokens(s));
    const auto dout = TestTensor::random(stream, DType::kF32, {s.B, s.T, s.C}, 3);
    const TestTensor dwte(stream, DType::kF32, {s.V, s.C});
    const TestTensor dwpe(stream, DType::kF32, {s.max_T, s.C});
    const auto scratch =
        TestTensor::scratch(stream, embedding_backward_scratch(stream, s.B, s.T, s.C));
    embedding_backward(stream, dwte, dwpe, dout, tokens, scratch, false);
    return bytes_of(dwte, dwpe);
  });
}

TEST(EmbeddingErrors, NameTheTensor) {
  Stream stream = open_stream();
  const TestTensor wte(stream, DType::kF32, {5, 4});
  const TestTensor wpe(stream, DType::kF32, {3, 4});
  const TestTensor out(stream, DType::kF32, {2, 3, 4});
  const TestTensor tokens(stream, DType::kI32, {2, 3});
  const TestTensor floats(stream, DType::kF32, {2, 3});
  expect_error(ErrorKind::kInput, "[embedding_forward] tokens",
               [&] { embedding_forward(stream, out, floats, wte, wpe); });
  expect_error(ErrorKind::kInput, "[embedding_forward] positions: expected at most 3, got 1 to 4",
               [&] { embedding_forward(stream, out, tokens, wte, wpe, 1); });
  expect_error(ErrorKind::kInput, "[embedding_forward] out",
               [&] { embedding_forward(stream, floats, tokens, wte, wpe); });
  expect_error(ErrorKind::kInput, "[embedding_backward] dwte",
               [&] { embedding_backward(stream, floats, {}, out, tokens, {}, false); });
}

TEST(EmbeddingErrors, ATokenOutOfRangeIsRefusedOrMakesItsVectorNan) {
  Stream stream = open_stream();
  const auto wte = TestTensor::filled(stream, DType::kF32, {5, 4}, 0.5);
  const TestTensor wpe(stream, DType::kF32, {3, 4});
  const TestTensor out(stream, DType::kF32, {2, 3, 4});
  for (const double bad : {-1.0, 5.0}) {
    const TestTensor wrong(stream, DType::kI32, {2, 3}, {0, 1, 2, 3, 4, bad});
    if (backend_name() != "cpu") {
      embedding_forward(stream, out, wrong, wte, {});
      const Values y = out.values();
      for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(y[i], 0.5);
      for (std::size_t i = 20; i < 24; ++i) EXPECT_TRUE(std::isnan(y[i]));
      const TestTensor dwte(stream, DType::kF32, {5, 4});
      const auto scratch = TestTensor::scratch(stream, embedding_backward_scratch(stream, 2, 3, 4));
      embedding_backward(stream, dwte, {}, out, wrong, scratch, false);
      for (const double d : dwte.values()) EXPECT_EQ(d, 0.5);
      continue;
    }
    expect_error(ErrorKind::kInput, "[embedding_forward] tokens: expected 0 to 4, got",
                 [&] { embedding_forward(stream, out, wrong, wte, wpe); });
    expect_error(ErrorKind::kInput, "[embedding_backward] tokens: expected 0 to 4, got",
                 [&] { embedding_backward(stream, wte, wpe, out, wrong, {}, false); });
  }
}

}  // namespace
}  // namespace llmc::testing
