#include "llmc/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/isa_test.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

/// On a GPU, each of DeviceOptions::attention in place of the instruction sets.
class Attention : public IsaTest {
 protected:
  Stream open(int threads = 2) const override {
    if (backend_name() == "cpu") return IsaTest::open(threads);
    return Stream(Device::open({.attention = GetParam()}));
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Attention,
                         ::testing::ValuesIn(backend_name() == "cpu"
                                                 ? available_isas()
                                                 : std::vector<std::string>{"own", "auto"}),
                         isa_name);

constexpr AttentionSizes kSizes[] = {
    {1, 1, 1, 1, 1},    {2, 1, 3, 3, 64},    {1, 2, 2, 1, 8},    {2, 7, 3, 3, 13},
    {1, 63, 2, 2, 16},  {2, 64, 2, 2, 64},   {1, 65, 4, 2, 31},  {1, 67, 6, 2, 80},
    {1, 130, 2, 1, 7},  {1, 200, 1, 1, 128}, {1, 17, 4, 1, 24},  {2, 65, 2, 1, 40},
    {1, 127, 2, 2, 32}, {1, 127, 2, 1, 96},  {1, 257, 2, 1, 64}, {1, 1, 2, 1, 128},
    {1, 128, 2, 2, 16}, {2, 193, 3, 3, 72},  {1, 260, 2, 2, 88}, {1, 321, 4, 2, 120},
};

float scale_of(const AttentionSizes& s) {
  return 1.0f / std::sqrt(static_cast<float>(s.HS));
}

/// Sharp enough that the running maximum matters.
TestTensor some_qkv(Stream& stream, DType dtype, const AttentionSizes& s) {
  return TestTensor::random(stream, dtype, {s.B, s.T, s.heads(), s.HS}, 5, 1.5);
}

TestTensor backward_scratch(Stream& stream, DType dtype, const AttentionSizes& s) {
  return TestTensor::scratch(
      stream, attention_backward_scratch(stream, dtype, s.B, s.T, s.NH, s.NKV, s.HS));
}

std::string name_of(const AttentionSizes& s) {
  return concat("B ", s.B, " T ", s.T, " NH ", s.NH, " NKV ", s.NKV, " HS ", s.HS);
}

TEST_P(Attention, Forward) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const AttentionSizes& s : kSizes) {
      SCOPED_TRACE(concat(llmc::name_of(dtype), " ", name_of(s)));
      const auto qkv = some_qkv(stream, dtype, s);
      const auto out = TestTensor::nan(stream, dtype, {s.B, s.T, s.NH, s.HS});
      const auto lse = TestTensor::nan(stream, DType::kF32, {s.B, s.NH, s.T});
      attention_forward(stream, out, lse, qkv, s.NKV, scale_of(s));
      const Values x = qkv.values();
      const auto exact = attention_forward(Arithmetic::kExact, s, x, scale_of(s));
      const auto plain = attention_forward(Arithmetic::kPlainBf16, s, x, scale_of(s));
      expect_close("out", out, exact.out, plain.out, s.HS + s.T);
      expect_close("lse", lse.values(), exact.lse, s.HS + s.T);

      const auto alone = TestTensor::nan(stream, dtype, {s.B, s.T, s.NH, s.HS});
      attention_forward(stream, alone, {}, qkv, s.NKV, scale_of(s));
      EXPECT_EQ(alone.bytes(), out.bytes());
    }
  }
}

TEST_P(Attention, Backward) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const AttentionSizes& s : kSizes) {
      SCOPED_TRACE(concat(llmc::name_of(dtype), " ", name_of(s)));
      const auto qkv = some_qkv(stream, dtype, s);
      const auto dout = TestTensor::random(stream, dtype, {s.B, s.T, s.NH, s.HS}, 6);
      const TestTensor out(stream, dtype, {s.B, s.T, s.NH, s.HS});
      const TestTensor lse(stream, DType::kF32, {s.B, s.NH, s.T});
      attention_forward(stream, out, lse, qkv, s.NKV, scale_of(s));
      const auto dqkv = TestTensor::nan(stream, dtype, qkv->shape());
      const auto scratch = backward_scratch(stream, dtype, s);
      attention_backward(stream, dqkv, dout, qkv, out, lse, scratch, s.NKV, scale_of(s));
      const Values dy = dout.values();
      const Values x = qkv.values();
      const Values exact = attention_backward(Arithmetic::kExact, s, dy, x, scale_of(s));
      const Values plain = attention_backward(Arithmetic::kPlainBf16, s, dy, x, scale_of(s));
      expect_close("dqkv", dqkv, exact, plain, 4 * (s.HS + s.T));
    }
  }
}

// Scores of hundreds: exponentials would overflow without the running maximum.
TEST_P(Attention, LargeScoresStayFinite) {
  Stream stream = open();
  const AttentionSizes s{1, 150, 1, 1, 16};
  const auto qkv = TestTensor::random(stream, DType::kF32, {s.B, s.T, s.heads(), s.HS}, 5, 15.0);
  const TestTensor out(stream, DType::kF32, {s.B, s.T, s.NH, s.HS});
  attention_forward(stream, out, {}, qkv, s.NKV, 1.0f);
  const auto exact = attention_forward(Arithmetic::kExact, s, qkv.values(), 1.0);
  const Values y = out.values();
  // A score of 1000 has a rounding error of about 1e-4, and so have the probabilities.
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], exact.out[i], 2e-2);
}

TEST_P(Attention, TheFutureHasNoInfluence) {
  Stream stream = open();
  const AttentionSizes s{1, 90, 2, 1, 8};
  const auto qkv = some_qkv(stream, DType::kF32, s);
  const TestTensor out(stream, DType::kF32, {s.B, s.T, s.NH, s.HS});
  attention_forward(stream, out, {}, qkv, s.NKV, scale_of(s));
  const Values before = out.values();
  Values changed = qkv.values();
  const auto from = static_cast<std::ptrdiff_t>(70 * s.heads() * s.HS);
  std::for_each(changed.begin() + from, changed.end(), [](double& x) { x = 3 - x; });
  const TestTensor other(stream, DType::kF32, qkv->shape(), changed);
  attention_forward(stream, out, {}, other, s.NKV, scale_of(s));
  const Values after = out.values();
  const auto border = static_cast<std::ptrdiff_t>(70 * s.NH * s.HS);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + border, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + border, before.end(), after.begin() + border));
}

// A prompt in one piece, in uneven pieces and token by token all give what the whole gives.
TEST_P(Attention, DecodeEqualsForward) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const AttentionSizes& s : {AttentionSizes{2, 75, 4, 2, 24}, {1, 130, 3, 3, 64}}) {
      const auto qkv = some_qkv(stream, dtype, s);
      const Values x = qkv.values();
      const auto exact = attention_forward(Arithmetic::kExact, s, x, scale_of(s));
      const auto plain = attention_forward(Arithmetic::kPlainBf16, s, x, scale_of(s));
      const std::int64_t max_T = s.T + 5;
      const auto k_cache = TestTensor::nan(stream, dtype, {s.B, max_T, s.NKV, s.HS});
      const auto v_cache = TestTensor::nan(stream, dtype, {s.B, max_T, s.NKV, s.HS});
      Values all(exact.out.size());
      const std::int64_t pieces[] = {1, 66, 3};
      std::int64_t position = 0;
      for (std::size_t piece = 0; position < s.T; ++piece) {
        const std::int64_t n = std::min(pieces[std::min<std::size_t>(piece, 2)], s.T - position);
        Values part;
        for (std::int64_t b = 0; b < s.B; ++b) {
          const auto begin =
              x.begin() + static_cast<std::ptrdiff_t>((b * s.T + position) * s.heads() * s.HS);
          part.insert(part.end(), begin, begin + static_cast<std::ptrdiff_t>(n * s.heads() * s.HS));
        }
        const TestTensor in(stream, dtype, {s.B, n, s.heads(), s.HS}, part);
        const auto out = TestTensor::nan(stream, dtype, {s.B, n, s.NH, s.HS});
        attention_decode(stream, out, k_cache, v_cache, in, position, scale_of(s));
        const Values y = out.values();
        const std::int64_t row = s.NH * s.HS;
        for (std::int64_t b = 0; b < s.B; ++b) {
          std::copy_n(y.begin() + static_cast<std::ptrdiff_t>(b * n * row), n * row,
                      all.begin() + static_cast<std::ptrdiff_t>((b * s.T + position) * row));
        }
        position += n;
      }
      if (dtype == DType::kF32) {
        expect_close("out", all, exact.out, s.HS + s.T);
      } else {
        expect_close_bf16("out", all, exact.out, plain.out, s.HS + s.T);
      }
    }
  }
}

// Rows of different lengths, each with a token of its own.
TEST_P(Attention, DecodeOneTokenOfEachRow) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const AttentionSizes& s : {AttentionSizes{3, 75, 4, 2, 24}, {2, 130, 3, 3, 64}}) {
      const auto qkv = some_qkv(stream, dtype, s);
      const Values x = qkv.values();
      const auto exact = attention_forward(Arithmetic::kExact, s, x, scale_of(s));
      const auto plain = attention_forward(Arithmetic::kPlainBf16, s, x, scale_of(s));
      const std::int64_t max_T = s.T + 5, row = s.heads() * s.HS, out_row = s.NH * s.HS;
      const auto k_cache = TestTensor::nan(stream, dtype, {s.B, max_T, s.NKV, s.HS});
      const auto v_cache = TestTensor::nan(stream, dtype, {s.B, max_T, s.NKV, s.HS});
      const auto tokens_of = [&](std::int64_t b, std::int64_t begin, std::int64_t end) {
        return Values(x.begin() + static_cast<std::ptrdiff_t>((b * s.T + begin) * row),
                      x.begin() + static_cast<std::ptrdiff_t>((b * s.T + end) * row));
      };
      // Row b holds T − 3 − 20·b tokens.
      Values positions, expected, expected_plain, got;
      for (std::int64_t b = 0; b < s.B; ++b) {
        const std::int64_t held = s.T - 3 - 20 * b;
        positions.push_back(static_cast<double>(held));
        const TestTensor prompt(stream, dtype, {1, held, s.heads(), s.HS}, tokens_of(b, 0, held));
        const auto out = TestTensor::nan(stream, dtype, {1, held, s.NH, s.HS});
        attention_decode(stream, out, k_cache->rows(b, b + 1), v_cache->rows(b, b + 1), prompt, 0,
                         scale_of(s));
      }
      for (std::int64_t n = 0; n < 3; ++n) {
        Values newest;
        for (std::int64_t b = 0; b < s.B; ++b) {
          const auto at = static_cast<std::int64_t>(positions[static_cast<std::size_t>(b)]);
          const Values token = tokens_of(b, at, at + 1);
          newest.insert(newest.end(), token.begin(), token.end());
          for (auto [to, from] :
               {std::pair{&expected, &exact.out}, {&expected_plain, &plain.out}}) {
            const auto begin =
                from->begin() + static_cast<std::ptrdiff_t>((b * s.T + at) * out_row);
            to->insert(to->end(), begin, begin + static_cast<std::ptrdiff_t>(out_row));
          }
        }
        const TestTensor in(stream, dtype, {s.B, 1, s.heads(), s.HS}, newest);
        const TestTensor held(stream, DType::kI32, {s.B}, positions);
        const auto out = TestTensor::nan(stream, dtype, {s.B, 1, s.NH, s.HS});
        attention_decode_token(stream, out, k_cache, v_cache, in, held, scale_of(s));
        const Values y = out.values();
        got.insert(got.end(), y.begin(), y.end());
        for (double& position : positions) ++position;
      }
      if (dtype == DType::kF32) {
        expect_close("out", got, expected, s.HS + s.T);
      } else {
        expect_close_bf16("out", got, expected, expected_plain, s.HS + s.T);
      }
    }
  }
}

TEST_P(Attention, ThreadsDoNotChangeBits) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits_for_any_threads([&](Stream& stream) {
      const AttentionSizes s{2, 70, 6, 2, 24};
      const auto qkv = some_qkv(stream, dtype, s);
      const auto dout = TestTensor::random(stream, dtype, {s.B, s.T, s.NH, s.HS}, 6);
      const TestTensor out(stream, dtype, {s.B, s.T, s.NH, s.HS});
      const TestTensor lse(stream, DType::kF32, {s.B, s.NH, s.T});
      const TestTensor dqkv(stream, dtype, qkv->shape());
      const auto scratch = backward_scratch(stream, dtype, s);
      attention_forward(stream, out, lse, qkv, s.NKV, scale_of(s));
      attention_backward(stream, dqkv, dout, qkv, out, lse, scratch, s.NKV, scale_of(s));
      return bytes_of(out, lse, dqkv);
    });
  }
}

// With scratch planned for more tokens, and whatever was in it.
TEST_P(Attention, RepeatsBitForBit) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    const AttentionSizes s{2, 257, 4, 2, 64};
    const auto qkv = some_qkv(stream, dtype, s);
    const auto dout = TestTensor::random(stream, dtype, {s.B, s.T, s.NH, s.HS}, 6);
    const auto scratch = TestTensor::scratch(
        stream, attention_backward_scratch(stream, dtype, s.B, 2 * s.T, s.NH, s.NKV, s.HS));
    const auto compute = [&] {
      const auto out = TestTensor::nan(stream, dtype, {s.B, s.T, s.NH, s.HS});
      const auto lse = TestTensor::nan(stream, DType::kF32, {s.B, s.NH, s.T});
      const auto dqkv = TestTensor::nan(stream, dtype, qkv->shape());
      attention_forward(stream, out, lse, qkv, s.NKV, scale_of(s));
      attention_backward(stream, dqkv, dout, qkv, out, lse, scratch, s.NKV, scale_of(s));
      return bytes_of(out, lse, dqkv);
    };
    const std::vector<std::uint8_t> first = compute();
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(compute(), first);
  }
}

TEST(AttentionErrors, NameTheArgument) {
  Stream stream = open_stream();
  const TestTensor qkv(stream, DType::kF32, {1, 4, 6, 8});
  const TestTensor out(stream, DType::kF32, {1, 4, 2, 8});
  const TestTensor lse(stream, DType::kF32, {1, 2, 4});
  const TestTensor cache(stream, DType::kF32, {1, 5, 2, 8});
  EXPECT_NO_THROW(attention_forward(stream, out, lse, qkv, 2, 1.0f));
  expect_error(ErrorKind::kInput, "[attention_forward] heads: expected NH to be a multiple of NKV",
               [&] { attention_forward(stream, out, lse, qkv, 3, 1.0f); });
  expect_error(ErrorKind::kInput,
               "[attention_forward] out: expected f32 (1, 4, 2, 8), got f32 (1, 4, 6, 8)",
               [&] { attention_forward(stream, qkv, lse, qkv, 2, 1.0f); });
  expect_error(ErrorKind::kInput, "[attention_backward] scratch: expected at least",
               [&] { attention_backward(stream, qkv, out, qkv, out, lse, {}, 2, 1.0f); });
  expect_error(ErrorKind::kInput,
               "[attention_decode] position: expected at most 5 tokens in the cache, got 2 + 4",
               [&] { attention_decode(stream, out, cache, cache, qkv, 2, 1.0f); });
  expect_error(ErrorKind::kInput, "[attention_decode_token] qkv: expected one token a row, got 4",
               [&] {
                 const TestTensor positions(stream, DType::kI32, {1});
                 attention_decode_token(stream, out, cache, cache, qkv, positions, 1.0f);
               });
  expect_error(ErrorKind::kInput, "[attention_decode_token] positions: expected i32 (1)", [&] {
    const TestTensor one(stream, DType::kF32, {1, 1, 6, 8});
    const TestTensor one_out(stream, DType::kF32, {1, 1, 2, 8});
    attention_decode_token(stream, one_out, cache, cache, one, one, 1.0f);
  });
  const TestTensor wide(stream, DType::kF32, {1, 1, 3, attention_max_head_size() + 1});
  const TestTensor wide_out(stream, DType::kF32, {1, 1, 1, attention_max_head_size() + 1});
  expect_error(ErrorKind::kInput, "[attention_forward] head size: expected 1 to",
               [&] { attention_forward(stream, wide_out, {}, wide, 1, 1.0f); });
}

}  // namespace
}  // namespace llmc::testing
