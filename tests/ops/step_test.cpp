#include "llmc/ops/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/loss.h"
#include "ops/isa_test.h"
#include "support/tolerance.h"

namespace llmc::testing {
namespace {

class SumOfSquares : public IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isa, SumOfSquares, ::testing::ValuesIn(available_isas()), isa_name);

TEST_P(SumOfSquares, OfEveryBlock) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n :
         {std::int64_t{1}, std::int64_t{37}, kNormBlock, kNormBlock + 1, 3 * kNormBlock - 5}) {
      const auto values = TestTensor::random(stream, dtype, {n}, 1, 2.0);
      const std::int64_t blocks = (n + kNormBlock - 1) / kNormBlock;
      const auto partials = TestTensor::nan(stream, DType::kF32, {blocks});
      sum_of_squares(stream, partials, values);
      Values exact(static_cast<std::size_t>(blocks));
      const Values x = values.values();
      for (std::size_t i = 0; i < x.size(); ++i) {
        exact[i / static_cast<std::size_t>(kNormBlock)] += x[i] * x[i];
      }
      expect_close("partials", partials.values(), exact, kNormBlock);
    }
  }
}

TEST_P(SumOfSquares, SlicesAndThreadsDoNotChangeBits) {
  const std::int64_t n = 5 * kNormBlock + 7;
  expect_same_bits_for_any_threads([&](Stream& stream) {
    const auto values = TestTensor::random(stream, DType::kF32, {n}, 1);
    const TestTensor partials(stream, DType::kF32, {6});
    sum_of_squares(stream, partials, values);
    const TestTensor sliced(stream, DType::kF32, {6});
    const Tensor v = values;
    const Tensor p = sliced;
    sum_of_squares(stream, p.flat(0, 2), v.flat(0, 2 * kNormBlock));
    sum_of_squares(stream, p.flat(2, 4), v.flat(2 * kNormBlock, n - 2 * kNormBlock));
    EXPECT_EQ(sliced.bytes(), partials.bytes());
    return bytes_of(partials);
  });
}

TEST_P(SumOfSquares, TheFirstElementMayLieAnywhere) {
  Stream stream = open();
  for (const DType dtype : kFloatTypes) {
    const std::int64_t n = 2 * kNormBlock + 3;
    const auto values = TestTensor::random(stream, dtype, {n}, 1);
    const TestTensor partials(stream, DType::kF32, {3});
    sum_of_squares(stream, partials, values);
    for (const std::int64_t first : {1, 3}) {
      const TestTensor shifted(stream, dtype, {first + n});
      copy(stream, Tensor(shifted).flat(first, n), values);
      const TestTensor again(stream, DType::kF32, {3});
      sum_of_squares(stream, again, Tensor(shifted).flat(first, n));
      EXPECT_EQ(again.bytes(), partials.bytes());
    }
  }
}

/// Runs steps with given losses and norms through the guard.
class Guard : public ::testing::Test {
 protected:
  StepBlock step(double loss, double norm, const GuardOptions& options = {},
                 double nominal_tokens = 8, std::int64_t counted = 8) {
    begin_step(stream_, block_.device(),
               {.lr = 0.5f, .seed = 9, .step = next_++, .nominal_tokens = nominal_tokens});
    StepBlock b = block_.get();
    b.loss_sum = loss * static_cast<double>(counted);
    b.counted_tokens = counted;
    block_.set(b);
    const TestTensor partials(stream_, DType::kF32, {2}, {norm * norm * 0.25, norm * norm * 0.75});
    finish_gradients(stream_, block_.device(), guard_.device(), partials, options);
    return block_.get();
  }

  Stream stream_ = open_stream();
  TestStruct<StepBlock> block_{stream_};
  TestStruct<StepGuard> guard_{stream_};
  std::int64_t next_ = 0;
};

/// What `ranks` ranks told, with partials that name rank and place.
TestTensor told(Stream& stream, const std::vector<StepBlock>& blocks, std::int64_t partials) {
  const auto ranks = static_cast<std::int64_t>(blocks.size());
  const std::int64_t bytes = step_record_bytes(partials);
  TestTensor records(stream, DType::kU8, {ranks, bytes});
  std::vector<std::uint8_t> host(static_cast<std::size_t>(ranks * bytes));
  for (std::int64_t r = 0; r < ranks; ++r) {
    std::uint8_t* const record = host.data() + r * bytes;
    std::memcpy(record, &blocks[static_cast<std::size_t>(r)], sizeof(StepBlock));
    for (std::int64_t i = 0; i < partials; ++i) {
      const auto value = static_cast<float>(100 * r + i);
      std::memcpy(record + sizeof(StepBlock) + static_cast<std::size_t>(i) * sizeof value, &value,
                  sizeof value);
    }
  }
  copy_from_host(stream, records, host.data());
  return records;
}

StepBlock rank_block(double loss_sum, std::int64_t counted, std::int32_t stop) {
  StepBlock block;
  block.loss_sum = loss_sum;
  block.counted_tokens = counted;
  block.stop = stop;
  return block;
}

TEST(CombineRanks, AddsSumsAndPutsPartialsInOrder) {
  Stream stream = open_stream();
  StepBlock mine = rank_block(7, 7, 7);
  mine.lr = 0.25f;
  mine.step = 12;
  mine.updates = 5;
  const TestStruct<StepBlock> block(stream, mine);
  // Added in this order, the 1 is lost.
  const std::vector<StepBlock> blocks{rank_block(1, 2, 0), rank_block(1e17, 5, 15),
                                      rank_block(-1e17, 0, 2)};
  constexpr std::int64_t kPartials = 3;
  const TestTensor records = told(stream, blocks, kPartials);
  // The second and first partial of rank 2, then the third of rank 0.
  const auto number = [](std::int64_t rank, std::int64_t i) {
    return static_cast<double>(
        (rank * step_record_bytes(kPartials) + static_cast<std::int64_t>(sizeof(StepBlock))) / 4 +
        i);
  };
  const TestTensor order(stream, DType::kI32, {3}, {number(2, 1), number(2, 0), number(0, 2)});
  const auto partials = TestTensor::nan(stream, DType::kF32, {3});
  combine_ranks(stream, block.device(), partials, records, order);
  EXPECT_EQ(partials.values(), (Values{201, 200, 2}));
  const StepBlock all = block.get();
  EXPECT_EQ(all.loss_sum, 0);
  EXPECT_EQ(all.counted_tokens, 7);
  EXPECT_EQ(all.stop, 15);
  EXPECT_EQ(all.lr, 0.25f);
  EXPECT_EQ(all.step, 12);
  EXPECT_EQ(all.updates, 5);
}

TEST(CombineRanks, OneRankKeepsItsSums) {
  Stream stream = open_stream();
  const TestStruct<StepBlock> block(stream);
  const std::int64_t m = 1000;
  const TestTensor records = told(stream, {rank_block(0.1, 3, 0)}, m);
  Values numbers(static_cast<std::size_t>(m));
  std::iota(numbers.begin(), numbers.end(), sizeof(StepBlock) / 4.0);
  const TestTensor order(stream, DType::kI32, {m}, numbers);
  const auto partials = TestTensor::nan(stream, DType::kF32, {m});
  combine_ranks(stream, block.device(), partials, records, order);
  Values expected(static_cast<std::size_t>(m));
  std::iota(expected.begin(), expected.end(), 0.0);
  EXPECT_EQ(partials.values(), expected);
  EXPECT_EQ(block.get().loss_sum, 0.1);
  EXPECT_EQ(block.get().stop, 0);
}

TEST(CombineRanks, RefusesWhatIsNoRecord) {
  Stream stream = open_stream();
  const TestStruct<StepBlock> block(stream);
  const TestTensor order(stream, DType::kI32, {1});
  const TestTensor partials(stream, DType::kF32, {1});
  const auto refused = [&](const TestTensor& records) {
    EXPECT_THROW(combine_ranks(stream, block.device(), partials, records, order), Error);
  };
  refused(TestTensor(stream, DType::kU8, {step_record_bytes(1)}));
  refused(TestTensor(stream, DType::kU8, {2, step_record_bytes(1) + 1}));
  refused(TestTensor(stream, DType::kU8, {2, kRecordAlignment}));
  refused(TestTensor(stream, DType::kF32, {2, step_record_bytes(1)}));
}

TEST_F(Guard, BeginStepClearsAllButTheUpdates) {
  StepBlock b;
  b.loss_sum = 3;
  b.counted_tokens = 4;
  b.loss = 5;
  b.grad_norm = 6;
  b.grad_scale = 7;
  b.skip = kLossOutlier;
  b.loss_z = 8;
  b.grad_z = 8;
  b.updates = 11;
  block_.set(b);
  begin_step(stream_, block_.device(),
             {.lr = 0.5f, .seed = 9, .step = 3, .nominal_tokens = 64, .stop = 2});
  b = block_.get();
  EXPECT_EQ(b.stop, 2);
  EXPECT_EQ(b.lr, 0.5f);
  EXPECT_EQ(b.seed, 9u);
  EXPECT_EQ(b.step, 3);
  EXPECT_EQ(b.nominal_tokens, 64);
  EXPECT_EQ(b.loss_sum, 0);
  EXPECT_EQ(b.counted_tokens, 0);
  EXPECT_EQ(b.loss, 0);
  EXPECT_EQ(b.grad_norm, 0);
  EXPECT_EQ(b.grad_scale, 0);
  EXPECT_EQ(b.skip, kNoSkip);
  EXPECT_EQ(b.loss_z, 0);
  EXPECT_EQ(b.grad_z, 0);
  EXPECT_EQ(b.updates, 11);
}

TEST_F(Guard, LossNormAndScaleAreThoseOfTheMeanOverCountedTokens) {
  const StepBlock b = step(2.25, 0.5, {.grad_clip = 0.25f}, 8, 4);
  EXPECT_FLOAT_EQ(b.loss, 2.25f);
  EXPECT_FLOAT_EQ(b.grad_norm, 1.0f);  // scaled by 1/8, though only 4 tokens count
  EXPECT_FLOAT_EQ(b.grad_scale, 2.0f * 0.25f);
  EXPECT_EQ(b.skip, kNoSkip);
  EXPECT_EQ(b.updates, 1);
}

TEST_F(Guard, ClipsOnlyAboveTheLimitAndOnlyWhenAsked) {
  EXPECT_FLOAT_EQ(step(1, 4.0, {.grad_clip = 1.0f}).grad_scale, 0.25f);
  EXPECT_FLOAT_EQ(step(1, 0.5, {.grad_clip = 1.0f}).grad_scale, 1.0f);
  EXPECT_FLOAT_EQ(step(1, 4.0).grad_scale, 1.0f);
  EXPECT_EQ(block_.get().updates, 3);
}

TEST_F(Guard, NonFiniteValuesSkipAndNeverEnterTheWindows) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  step(1, 1);
  for (const double bad : {kNan, kInf, -kInf}) {
    const StepBlock b = step(bad, 1);
    EXPECT_EQ(b.skip, kNonFiniteLoss);
    EXPECT_EQ(b.grad_scale, 0);
  }
  for (const double bad : {kNan, kInf}) EXPECT_EQ(step(1, bad).skip, kNonFiniteGradient);
  EXPECT_EQ(step(1, 1, {}, 8, 0).skip, kNoTargets);
  EXPECT_EQ(guard_.get().loss.count, 1);
  EXPECT_EQ(guard_.get().grad_norm.count, 1);
  EXPECT_EQ(block_.get().updates, 1);
  EXPECT_EQ(step(1, 1).skip, kNoSkip);
  EXPECT_EQ(block_.get().updates, 2);
}

TEST_F(Guard, ManyPartialsAreAddedInDouble) {
  Values squares = TestTensor::random(stream_, DType::kF32, {100003}, 1, 100.0).values();
  for (double& x : squares) x = std::abs(x);
  const TestTensor partials(stream_, DType::kF32, {100003}, squares);
  StepBlock b;
  b.nominal_tokens = 6;
  b.loss_sum = 3;
  b.counted_tokens = 6;
  block_.set(b);
  finish_gradients(stream_, block_.device(), guard_.device(), partials, {});
  const double sum = std::accumulate(squares.begin(), squares.end(), 0.0);
  EXPECT_FLOAT_EQ(block_.get().grad_norm, static_cast<float>(std::sqrt(sum)));
}

TEST_F(Guard, AStepWithANanLogitIsSkippedAndTheNextOneIsNot) {
  // Nothing is read back before the end: the decision is made where the step block lies.
  const std::int64_t R = 8;
  const std::int64_t V = 16;
  const std::int64_t n = 100;
  Values bad(static_cast<std::size_t>(R * V), 0.25);
  bad[3 * V + 5] = std::numeric_limits<double>::quiet_NaN();
  const TestTensor targets(stream_, DType::kI32, {R}, {0, 1, 2, 3, 4, 5, 6, 7});
  const TestTensor losses(stream_, DType::kF32, {R});
  const auto start = TestTensor::random(stream_, DType::kF32, {n}, 1);
  const auto grad = TestTensor::random(stream_, DType::kF32, {n}, 2);
  const TestTensor partials(stream_, DType::kF32, {1});
  const auto run = [&](const std::vector<Values>& steps) {
    const TestTensor param(stream_, DType::kF32, {n}, start.values());
    const TestTensor m(stream_, DType::kF32, {n});
    const TestTensor v(stream_, DType::kF32, {n});
    const AdamWRange range{param, {}, m, v, grad};
    block_.set({});
    guard_.set({});
    std::vector<TestTensor> logits;
    for (const Values& x : steps) logits.emplace_back(stream_, DType::kF32, Shape{R, V}, x);
    for (const TestTensor& x : logits) {
      begin_step(stream_, block_.device(), {.lr = 0.1f, .seed = 1, .step = 0, .nominal_tokens = 8});
      cross_entropy_backward(stream_, losses, x, targets, V, 0.125f, block_.device());
      sum_of_squares(stream_, partials, grad);
      finish_gradients(stream_, block_.device(), guard_.device(), partials, {.grad_clip = 1.0f});
      adamw_update(stream_, {&range, 1}, block_.device(), {});
    }
    return bytes_of(param, m, v);
  };
  const Values good(bad.size(), 0.25);
  const auto expected = run({good});
  EXPECT_EQ(run({bad, good}), expected);
  EXPECT_EQ(block_.get().updates, 1);
  EXPECT_EQ(guard_.get().loss.count, 1);
  run({good, bad});
  EXPECT_EQ(block_.get().skip, kNonFiniteLoss);
}

TEST_F(Guard, OutliersAreJudgedOnceTheWindowIsFull) {
  const GuardOptions options{.skip_loss_z = 4.0f, .skip_grad_z = 5.0f};
  double mean = 0;
  double variance = 0;
  for (int i = 0; i < OutlierWindow::kSize; ++i) {
    const double x = 3 + 0.1 * std::sin(i);
    const StepBlock b = step(x, i == 5 ? 50 : 1 + 0.01 * (i % 3), options);
    EXPECT_EQ(b.skip, kNoSkip) << i;
    EXPECT_EQ(b.loss_z, 0) << i;
    EXPECT_EQ(b.grad_z, 0) << i;
    mean += x / OutlierWindow::kSize;
  }
  for (int i = 0; i < OutlierWindow::kSize; ++i) {
    const double d = 3 + 0.1 * std::sin(i) - mean;
    variance += d * d / OutlierWindow::kSize;
  }
  const double limit = mean + 4 * std::sqrt(variance);
  StepBlock b = step(limit + 0.001, 1, options);
  EXPECT_EQ(b.skip, kLossOutlier);
  EXPECT_NEAR(b.loss_z, 4 + 0.001 / std::sqrt(variance), 1e-3);
  EXPECT_EQ(b.updates, OutlierWindow::kSize);
  EXPECT_EQ(step(mean, 1000, options).skip, kGradientOutlier);
  EXPECT_EQ(step(mean, 1000, {.skip_loss_z = 4.0f}).skip, kNoSkip);  // not asked for
  b = step(limit - 0.001, 1, options);
  EXPECT_EQ(b.skip, kNoSkip);
  EXPECT_EQ(b.updates, OutlierWindow::kSize + 2);
  EXPECT_EQ(step(-1000, 1, options).skip, kNoSkip);  // a low loss is no outlier
}

TEST_F(Guard, TheWindowHoldsTheLastAcceptedValues) {
  for (int i = 0; i < OutlierWindow::kSize + 3; ++i) step(i, 1000 + i);
  const StepGuard g = guard_.get();
  EXPECT_EQ(g.loss.count, OutlierWindow::kSize);
  for (int i = 3; i < OutlierWindow::kSize + 3; ++i) {
    const auto* const end = std::end(g.loss.values);
    EXPECT_NE(std::find(std::begin(g.loss.values), end, static_cast<float>(i)), end) << i;
  }
}

TEST_F(Guard, EqualValuesHaveNoScore) {
  const GuardOptions options{.skip_loss_z = 2.0f, .skip_grad_z = 2.0f};
  for (int i = 0; i < OutlierWindow::kSize + 2; ++i) {
    EXPECT_EQ(step(2.5, 1.5, options).skip, kNoSkip);
  }
}

}  // namespace
}  // namespace llmc::testing
