// Attention where it has to be cuDNN's.

#include <cmath>
#include <string_view>

#include "llmc/ops/attention.h"
#include "ops/isa_test.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

constexpr DType kBF16 = DType::kBF16;

Stream open_attention(const char* kind) {
  return Stream(Device::open({.attention = kind}));
}

std::int64_t scratch_bytes(Stream& stream, const AttentionSizes& s, DType dtype = kBF16) {
  return attention_backward_scratch(stream, dtype, s.B, s.T, s.NH, s.NKV, s.HS);
}

float scale_of(const AttentionSizes& s) {
  return 1.0f / std::sqrt(static_cast<float>(s.HS));
}

class CudnnAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      scratch_bytes(stream_, {1, 128, 1, 1, 64});
    } catch (const Error& error) {
      const std::string_view text = error.what();
      if (text.find("this build has no cuDNN") != std::string_view::npos) GTEST_SKIP() << text;
      throw;
    }
  }

  Stream stream_ = open_attention("cudnn");
};

/// Inputs and results on one stream.
struct Case {
  Case(Stream& on, const AttentionSizes& sizes)
      : stream(on),
        s(sizes),
        qkv(TestTensor::random(on, kBF16, {s.B, s.T, s.heads(), s.HS}, 5, 1.5)),
        dout(TestTensor::random(on, kBF16, {s.B, s.T, s.NH, s.HS}, 6)),
        out(TestTensor::nan(on, kBF16, {s.B, s.T, s.NH, s.HS})),
        lse(TestTensor::nan(on, DType::kF32, {s.B, s.NH, s.T})),
        dqkv(TestTensor::nan(on, kBF16, {s.B, s.T, s.heads(), s.HS})) {}

  void forward() { attention_forward(stream, out, lse, qkv, s.NKV, scale_of(s)); }
  void backward(std::int64_t bytes) {
    const auto scratch = TestTensor::scratch(stream, bytes);
    attention_backward(stream, dqkv, dout, qkv, out, lse, scratch, s.NKV, scale_of(s));
    stream.synchronize();
  }
  void expect_right() const {
    const Values x = qkv.values(), dy = dout.values();
    const auto exact = attention_forward(Arithmetic::kExact, s, x, scale_of(s));
    const auto plain = attention_forward(Arithmetic::kPlainBf16, s, x, scale_of(s));
    expect_close("out", out, exact.out, plain.out, s.HS + s.T);
    expect_close("lse", lse.values(), exact.lse, s.HS + s.T);
    expect_close("dqkv", dqkv, attention_backward(Arithmetic::kExact, s, dy, x, scale_of(s)),
                 attention_backward(Arithmetic::kPlainBf16, s, dy, x, scale_of(s)),
                 4 * (s.HS + s.T));
  }

  Stream& stream;
  AttentionSizes s;
  TestTensor qkv, dout, out, lse, dqkv;
};

// Sizes that models have: all of these must be cuDNN's, or there would be an error.
TEST_F(CudnnAttention, TakesWhatModelsHave) {
  for (const AttentionSizes& s : {AttentionSizes{2, 256, 3, 3, 64},
                                  {1, 384, 2, 2, 128},
                                  {1, 256, 4, 2, 64},
                                  {1, 128, 2, 2, 80},
                                  {2, 200, 2, 2, 96}}) {
    SCOPED_TRACE(concat("T ", s.T, " NH ", s.NH, " NKV ", s.NKV, " HS ", s.HS));
    Case c(stream_, s);
    c.forward();
    c.backward(scratch_bytes(stream_, s));
    c.expect_right();
  }
}

// Less scratch means more pieces of the batch, down to some heads of one sequence.
TEST_F(CudnnAttention, PiecesDoNotChangeBits) {
  for (const AttentionSizes& s : {AttentionSizes{5, 256, 4, 4, 64}, {3, 200, 8, 4, 64}}) {
    Case c(stream_, s);
    c.forward();
    const std::int64_t all = scratch_bytes(stream_, s);
    c.backward(all);
    const std::vector<std::uint8_t> expected = c.dqkv.bytes();
    for (const AttentionSizes& piece : {AttentionSizes{3, s.T, s.NH, s.NKV, s.HS},
                                        {1, s.T, s.NH, s.NKV, s.HS},
                                        {1, s.T, s.NH / 2, s.NKV / 2, s.HS},
                                        {1, s.T, s.NH / 4, s.NKV / 4, s.HS}}) {
      const std::int64_t some = scratch_bytes(stream_, piece);
      EXPECT_LE(some, all);
      Case again(stream_, s);
      again.forward();
      again.backward(some);
      EXPECT_EQ(again.dqkv.bytes(), expected) << piece.B << " sequences, " << piece.NH << " heads";
    }
  }
}

TEST_F(CudnnAttention, EitherFollowsTheOther) {
  Stream own = open_attention("own");
  const AttentionSizes s{2, 256, 4, 2, 64};
  for (Stream* const first : {&own, &stream_}) {
    Stream& second = first == &own ? stream_ : own;
    Case before(*first, s), after(second, s);
    before.forward();
    first->synchronize();
    attention_backward(second, after.dqkv, after.dout, after.qkv, before.out, before.lse,
                       TestTensor::scratch(second, scratch_bytes(second, s)), s.NKV, scale_of(s));
    second.synchronize();
    const Values x = after.qkv.values(), dy = after.dout.values();
    expect_close("dqkv", after.dqkv, attention_backward(Arithmetic::kExact, s, dy, x, scale_of(s)),
                 attention_backward(Arithmetic::kPlainBf16, s, dy, x, scale_of(s)),
                 4 * (s.HS + s.T));
  }
}

// A long sequence does not fit in the workspace: an error by name, and no surprise with auto.
TEST_F(CudnnAttention, NeedsBoundedScratch) {
  constexpr std::int64_t kMost = std::int64_t{256} << 20;
  EXPECT_LE(scratch_bytes(stream_, {64, 1024, 12, 12, 64}), kMost);
  EXPECT_LE(scratch_bytes(stream_, {2, 4096, 16, 4, 128}), kMost);
  expect_error(ErrorKind::kConfig,
               "[attention] expected what cuDNN can compute, as it was asked for", [&] {
                 scratch_bytes(stream_, {1, 16384, 1, 1, 64});
               });
  Stream other = open_attention("auto");
  EXPECT_LE(scratch_bytes(other, {1, 16384, 1, 1, 64}), kMost);
}

TEST_F(CudnnAttention, RefusesWhatItCannot) {
  const auto refuses = [&](const char* why, const AttentionSizes& s, DType dtype) {
    expect_error(ErrorKind::kConfig, why, [&] { scratch_bytes(stream_, s, dtype); });
  };
  refuses("got tensors of f32", {1, 128, 1, 1, 64}, DType::kF32);
  refuses("got a head size of 12, no multiple of 8", {1, 128, 1, 1, 12}, kBF16);
  refuses("got a single token", {1, 1, 1, 1, 64}, kBF16);
}

// Views may start at any element; with auto, those that cuDNN cannot read are computed all the
// same.
TEST_F(CudnnAttention, LeavesUnalignedViews) {
  const AttentionSizes s{1, 128, 2, 2, 64};
  for (const char* const kind : {"cudnn", "auto"}) {
    Stream stream = open_attention(kind);
    const std::int64_t n = s.T * s.heads() * s.HS;
    const TestTensor memory = TestTensor::random(stream, kBF16, {n + 1}, 5);
    const Tensor qkv = memory->flat(1, n).view({s.B, s.T, s.heads(), s.HS});
    const TestTensor out = TestTensor::nan(stream, kBF16, {s.B, s.T, s.NH, s.HS});
    const auto run = [&] { attention_forward(stream, out, {}, qkv, s.NKV, scale_of(s)); };
    if (std::string_view(kind) == "cudnn") {
      expect_error(ErrorKind::kConfig, "multiple of 16 bytes", run);
      continue;
    }
    run();
    Values x = memory.values();
    x.erase(x.begin());
    expect_close("out", out, attention_forward(Arithmetic::kExact, s, x, scale_of(s)).out,
                 attention_forward(Arithmetic::kPlainBf16, s, x, scale_of(s)).out, s.HS + s.T);
  }
}

}  // namespace
}  // namespace llmc::testing
