#include "llmc/ops/adamw.h"

#include <cmath>
#include <vector>

#include "llmc/core/rng.h"
#include "ops/isa_test.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

class AdamW : public IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isa, AdamW, ::testing::ValuesIn(available_isas()), isa_name);

constexpr AdamWOptions kOptions{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};

StepBlock block_of(std::int64_t updates, float lr = 1e-2f, float grad_scale = 0.75f) {
  StepBlock b;
  b.lr = lr;
  b.grad_scale = grad_scale;
  b.updates = updates;
  b.step = updates - 1;
  b.seed = 1234567890123;
  return b;
}

void update(Stream& stream, const AdamWRange& range, const TestStruct<StepBlock>& block) {
  adamw_update(stream, {&range, 1}, block.device(), kOptions);
}

TEST_P(AdamW, FollowsTheFormula) {
  Stream stream = open();
  for (const DType grad_type : kFloatTypes) {
    for (const std::int64_t n : {1, 5, 16, 4095, 4097, 9001}) {
      const auto param = TestTensor::random(stream, DType::kF32, {n}, 1);
      const TestTensor m(stream, DType::kF32, {n});
      const TestTensor v(stream, DType::kF32, {n});
      AdamWState exact{param.values(), m.values(), v.values()};
      for (std::int64_t t = 1; t <= 5; ++t) {
        const auto grad =
            TestTensor::random(stream, grad_type, {n}, static_cast<std::uint32_t>(100 + t), 0.1);
        TestStruct<StepBlock> block(stream, block_of(t));
        update(stream, {param, {}, m, v, grad}, block);
        adamw(exact, grad.values(), block.get().lr, block.get().grad_scale, kOptions, t);
      }
      expect_close("theta", param.values(), exact.theta, 64);
      expect_close("m", m.values(), exact.m, 16);
      expect_close("v", v.values(), exact.v, 16);
    }
  }
}

TEST_P(AdamW, ManyUpdatesKeepTheBiasCorrection) {
  Stream stream = open();
  constexpr std::int64_t kUpdates = 1000000;
  const TestTensor param(stream, DType::kF32, {3}, {1, 2, 3});
  const TestTensor m(stream, DType::kF32, {3}, {0.1, -0.2, 0});
  const TestTensor v(stream, DType::kF32, {3}, {0.01, 0.5, 0});
  const TestTensor grad(stream, DType::kF32, {3}, {0.3, 0, 0});
  AdamWState exact{param.values(), m.values(), v.values()};
  TestStruct<StepBlock> block(stream, block_of(kUpdates));
  update(stream, {param, {}, m, v, grad}, block);
  adamw(exact, grad.values(), block.get().lr, block.get().grad_scale, kOptions, kUpdates);
  expect_close("theta", param.values(), exact.theta, 16);
}

TEST_P(AdamW, ASkippedStepChangesNothing) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    const auto param = TestTensor::random(stream, dtype, {100}, 1);
    const auto master = TestTensor::random(stream, DType::kF32, {100}, 1);
    const auto m = TestTensor::random(stream, DType::kF32, {100}, 2);
    const auto v = TestTensor::filled(stream, DType::kF32, {100}, 0.5);
    const auto grad = TestTensor::nan(stream, DType::kF32, {100});
    const auto before = bytes_of(param, master, m, v);
    StepBlock b = block_of(3);
    b.skip = kNonFiniteGradient;
    TestStruct<StepBlock> block(stream, b);
    update(stream, {param, master, m, v, grad}, block);
    EXPECT_EQ(bytes_of(param, master, m, v), before);
  }
}

TEST_P(AdamW, MastersHoldTheValueAndParametersItsRounding) {
  Stream stream = open();
  constexpr std::int64_t kCount = 5003;
  const auto f32 = TestTensor::random(stream, DType::kF32, {kCount}, 1);
  const TestTensor master(stream, DType::kF32, {kCount}, f32.values());
  const TestTensor param(stream, DType::kBF16, {kCount}, f32.values());
  const TestTensor copy(stream, DType::kF32, {kCount}, f32.values());
  const TestTensor copy_master(stream, DType::kF32, {kCount}, f32.values());
  const auto moment = [&] { return TestTensor(stream, DType::kF32, {kCount}); };
  const TestTensor m[3] = {moment(), moment(), moment()};
  const TestTensor v[3] = {moment(), moment(), moment()};
  const auto grad = TestTensor::random(stream, DType::kBF16, {kCount}, 2);
  TestStruct<StepBlock> block(stream, block_of(1));
  update(stream, {f32, {}, m[0], v[0], grad}, block);
  update(stream, {param, master, m[1], v[1], grad}, block);
  update(stream, {copy, copy_master, m[2], v[2], grad}, block);
  EXPECT_EQ(master.bytes(), f32.bytes());
  EXPECT_EQ(copy_master.bytes(), f32.bytes());
  EXPECT_EQ(copy.bytes(), f32.bytes());
  const Values theta = master.values();
  const Values rounded = param.values();
  for (std::size_t i = 0; i < theta.size(); ++i) {
    EXPECT_LT(std::abs(rounded[i] - theta[i]), std::abs(theta[i]) * 0x1p-7) << i;
  }
}

/// What round_stochastically of element `index` must give, from the definition.
float rounded(float x, std::uint64_t seed, std::int64_t index, std::int64_t step) {
  const auto words =
      philox4x32(seed, static_cast<std::uint64_t>(index) / 8, static_cast<std::uint64_t>(step));
  const std::uint32_t word = words[static_cast<std::size_t>(index % 8 / 2)];
  const std::uint32_t noise = index % 2 == 0 ? word & 0xffffu : word >> 16;
  const std::uint32_t sum = std::bit_cast<std::uint32_t>(x) + noise;
  return std::bit_cast<float>(sum & 0xffff0000u);
}

TEST_P(AdamW, StochasticRoundingFollowsItsDefinitionForAnySlicing) {
  Stream stream = open();
  constexpr std::int64_t kCount = 9001;
  constexpr std::int64_t kFirst = 1000003;  // in the whole model
  const auto start = TestTensor::random(stream, DType::kF32, {kCount}, 1);
  const auto grad = TestTensor::random(stream, DType::kF32, {kCount}, 2);
  TestStruct<StepBlock> block(stream, block_of(7));
  const auto update_cut = [&](const std::vector<std::int64_t>& cuts) {
    const TestTensor master(stream, DType::kF32, {kCount}, start.values());
    const TestTensor param(stream, DType::kBF16, {kCount});
    const TestTensor m(stream, DType::kF32, {kCount});
    const TestTensor v(stream, DType::kF32, {kCount});
    std::vector<AdamWRange> ranges;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t n = cuts[i + 1] - cuts[i];
      const auto slice = [&](const Tensor& t) { return t.flat(cuts[i], n); };
      ranges.push_back(
          {slice(param), slice(master), slice(m), slice(v), slice(grad), kFirst + cuts[i]});
    }
    adamw_update(stream, ranges, block.device(), kOptions);
    const Values theta = master.values();
    const Values got = param.values();
    for (std::size_t i = 0; i < theta.size(); ++i) {
      EXPECT_EQ(got[i], rounded(static_cast<float>(theta[i]), block.get().seed,
                                kFirst + static_cast<std::int64_t>(i), block.get().step))
          << i;
    }
    return bytes_of(param, master);
  };
  const auto whole = update_cut({0, kCount});
  EXPECT_EQ(update_cut({0, 1, 8, 4099, kCount}), whole);
}

TEST_P(AdamW, ManyRangesOfAnyKindAreUpdatedAtOnce) {
  Stream stream = open();
  // Ranges of 1 to 20 elements, one after the other with a gap, as fp32 and as bf16 with masters.
  constexpr std::int64_t kRanges = 1200;
  constexpr std::int64_t kStride = 21;
  constexpr std::int64_t kTotal = kRanges * kStride;
  const auto start = TestTensor::random(stream, DType::kF32, {kTotal}, 1);
  const auto grad = TestTensor::random(stream, DType::kF32, {kTotal}, 2);
  const TestTensor param(stream, DType::kF32, {kTotal}, start.values());
  const TestTensor rounded_param(stream, DType::kBF16, {kTotal});
  const TestTensor master(stream, DType::kF32, {kTotal}, start.values());
  const TestTensor m[2] = {{stream, DType::kF32, {kTotal}}, {stream, DType::kF32, {kTotal}}};
  const TestTensor v[2] = {{stream, DType::kF32, {kTotal}}, {stream, DType::kF32, {kTotal}}};
  TestStruct<StepBlock> block(stream, block_of(3));
  std::vector<AdamWRange> ranges;
  for (std::int64_t i = 0; i < kRanges; ++i) {
    const auto slice = [&](const Tensor& t) { return t.flat(i * kStride, 1 + i % 20); };
    const bool decay = i % 3 != 0;
    ranges.push_back({slice(param), {}, slice(m[0]), slice(v[0]), slice(grad), i * kStride, decay});
    if (i % 100 == 99) {  // then the same as bf16
      for (std::int64_t j = i - 99; j <= i; ++j) {
        const auto part = [&](const Tensor& t) { return t.flat(j * kStride, 1 + j % 20); };
        ranges.push_back({part(rounded_param), part(master), part(m[1]), part(v[1]), part(grad),
                          j * kStride, j % 3 != 0});
      }
    }
  }
  adamw_update(stream, ranges, block.device(), kOptions);
  AdamWState decayed{start.values(), Values(kTotal), Values(kTotal)};
  AdamWState plain = decayed;
  AdamWOptions no_decay = kOptions;
  no_decay.weight_decay = 0;
  adamw(decayed, grad.values(), block.get().lr, block.get().grad_scale, kOptions, 3);
  adamw(plain, grad.values(), block.get().lr, block.get().grad_scale, no_decay, 3);
  Values exact = start.values();
  for (std::int64_t i = 0; i < kTotal; ++i) {
    const std::int64_t range = i / kStride;
    if (i % kStride > range % 20) continue;  // in the gap
    const auto at = static_cast<std::size_t>(i);
    exact[at] = range % 3 != 0 ? decayed.theta[at] : plain.theta[at];
  }
  expect_close("theta", param.values(), exact, 16);
  EXPECT_EQ(master.bytes(), param.bytes());
  const Values theta = master.values();
  const Values got = rounded_param.values();
  for (std::int64_t i = 0; i < kTotal; ++i) {
    const bool in_gap = i % kStride > i / kStride % 20;
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(got[at], in_gap ? 0.0f
                              : rounded(static_cast<float>(theta[at]), block.get().seed, i,
                                        block.get().step))
        << i;
  }
}

TEST_P(AdamW, StochasticRoundingIsUnbiased) {
  Stream stream = open();
  constexpr std::int64_t kCount = 1 << 16;
  // A quarter of the way between two neighbouring bf16 values; no gradient, so theta stays.
  constexpr double kStep = 0x1p-7;
  const double x = 1 + kStep / 4;
  const auto master = TestTensor::filled(stream, DType::kF32, {kCount}, x);
  const TestTensor param(stream, DType::kBF16, {kCount});
  const TestTensor m(stream, DType::kF32, {kCount});
  const TestTensor v(stream, DType::kF32, {kCount});
  const TestTensor grad(stream, DType::kF32, {kCount});
  for (std::int64_t t = 1; t <= 3; ++t) {
    TestStruct<StepBlock> block(stream, block_of(t));
    update(stream, {param, master, m, v, grad, 0, false}, block);
    double up = 0;
    for (const double p : param.values()) {
      ASSERT_TRUE(p == 1 || p == 1 + kStep) << p;
      up += p > 1 ? 1 : 0;
    }
    const double sigma = std::sqrt(0.25 * 0.75 / kCount);
    EXPECT_NEAR(up / kCount, 0.25, 4 * sigma);
  }
}

TEST_P(AdamW, WithoutMasterSmallStepsStillMoveBf16) {
  Stream stream = open();
  constexpr std::int64_t kCount = 4096;
  const auto param = TestTensor::filled(stream, DType::kBF16, {kCount}, 1.0);
  const TestTensor m(stream, DType::kF32, {kCount});
  const TestTensor v(stream, DType::kF32, {kCount});
  const auto grad = TestTensor::filled(stream, DType::kF32, {kCount}, 1.0);
  // Each update is −1e-4, far below half a bf16 step; on average the sum must still arrive.
  for (std::int64_t t = 1; t <= 50; ++t) {
    TestStruct<StepBlock> block(stream, block_of(t, 1e-4f, 1.0f));
    update(stream, {param, {}, m, v, grad, 0, false}, block);
  }
  double mean = 0;
  for (const double p : param.values()) mean += p / kCount;
  EXPECT_NEAR(mean, 1 - 50e-4, 3e-4);
}

TEST_P(AdamW, ThreadsDoNotChangeBits) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits_for_any_threads([&](Stream& stream) {
      const std::int64_t n = 20011;
      const auto param = TestTensor::random(stream, dtype, {n}, 1);
      const TestTensor m(stream, DType::kF32, {n});
      const TestTensor v(stream, DType::kF32, {n});
      const auto grad = TestTensor::random(stream, DType::kF32, {n}, 2);
      TestStruct<StepBlock> block(stream, block_of(1));
      update(stream, {param, {}, m, v, grad, 5}, block);
      return bytes_of(param, m, v);
    });
  }
}

TEST(AdamWErrors, NameTheTensor) {
  Stream stream = open_stream();
  const TestTensor a(stream, DType::kF32, {4});
  const TestTensor b(stream, DType::kF32, {5});
  const TestTensor half(stream, DType::kBF16, {4});
  TestStruct<StepBlock> block(stream, block_of(1));
  expect_error(ErrorKind::kInput, "[adamw_update] m: expected 4 elements of f32, got f32 (5)", [&] {
    update(stream, {a, {}, b, a, a}, block);
  });
  expect_error(ErrorKind::kInput, "[adamw_update] master", [&] {
    update(stream, {half, half, a, a, a}, block);
  });
  expect_error(ErrorKind::kInput, "[adamw_update] grad", [&] {
    update(stream, {a, {}, a, a, Tensor()}, block);
  });
}

}  // namespace
}  // namespace llmc::testing
