// Ranks that train together against one process with the same global batch.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/optim/adamw.h"
#include "optim/shared_training.h"
#include "support/allocation_counter.h"
#include "support/temp_folder.h"
#include "support/thread_ranks.h"

namespace llmc {
namespace {

using testing::expect_close;
using testing::expect_error;
using testing::expect_same;
using testing::kSharedConfig;
using testing::kSharedRows;
using testing::kSharedT;
using testing::kSharedVocab;
using testing::read_values;
using testing::run_thread_ranks;
using testing::train;
using Outcome = testing::SharedOutcome;
using Rank = testing::SharedRank;
using Setting = testing::SharedSetting;

/// What each rank got.
std::vector<Outcome> train_on(int ranks, const Setting& setting, int steps) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](Communicator& comm) {
    outcomes[static_cast<std::size_t>(comm.rank())] = train(&comm, setting, steps);
  });
  return outcomes;
}

class Ranks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sharing, Ranks, ::testing::Values(1, 2, 3, 4, 5));

TEST_P(Ranks, TrainAsOneProcessDoesAndAlike) {
  constexpr int kSteps = 20;
  const Outcome alone = train(nullptr, {}, kSteps);
  ASSERT_LT(alone.losses.back(), alone.losses.front());
  const std::vector<Outcome> sliced = train_on(GetParam(), {.zero_stage = 1}, kSteps);
  const std::vector<Outcome> whole = train_on(GetParam(), {.zero_stage = 0}, kSteps);
  expect_close(sliced[0].losses, alone.losses, 1e-5f);
  expect_close(sliced[0].norms, alone.norms, 1e-4f);
  EXPECT_EQ(sliced[0].block.counted_tokens, alone.block.counted_tokens);
  for (const auto* outcomes : {&sliced, &whole}) {
    for (const Outcome& outcome : *outcomes) expect_same(outcome, sliced[0]);
  }
  if (GetParam() == 1) expect_same(sliced[0], alone);
}

TEST(Sharing, MicroStepsGiveTheSameStep) {
  const Outcome alone = train(nullptr, {.micro_steps = 4}, 5);
  expect_close(train_on(3, {.micro_steps = 4}, 5)[2].losses, alone.losses, 1e-5f);
}

TEST(Sharing, Bf16RoundsAlikeOnAllRanksInBothStages) {
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    const Setting setting{.dtype = DType::kBF16, .wire = wire};
    Setting stage_0 = setting;
    stage_0.zero_stage = 0;
    const std::vector<Outcome> sliced = train_on(3, setting, 8);
    for (const Outcome& outcome : train_on(3, stage_0, 8)) expect_same(outcome, sliced[0]);
    for (const Outcome& outcome : sliced) expect_same(outcome, sliced[0]);
    expect_close(sliced[0].losses, train(nullptr, setting, 8).losses, 2e-2f);
  }
}

TEST(Sharing, GradientsMayBeRoundedOnTheirWay) {
  const Outcome exact = train(nullptr, {}, 8);
  const std::vector<Outcome> rounded = train_on(2, {.wire = DType::kBF16}, 8);
  expect_close(rounded[0].losses, exact.losses, 1e-3f);
  EXPECT_NE(rounded[0].norms, exact.norms);
  for (const Outcome& outcome : train_on(2, {.zero_stage = 0, .wire = DType::kBF16}, 8)) {
    expect_same(outcome, rounded[1]);
  }
}

TEST(Sharing, HooksChangeNoBits) {
  const std::vector<Outcome> hooked = train_on(2, {}, 5);
  expect_same(train_on(2, {.attached = false}, 5)[1], hooked[1]);
}

TEST(Sharing, NormOfEqualGradientsHasTheSameBits) {
  const auto norm = [](Communicator* comm) {
    Rank rank(comm, {.attached = false});
    rank.passes(0);
    // The gradients are rank 0's alone; what is added to them is zero.
    for (ParameterSet::Id id = 0; id < rank.model.parameters().table().size(); ++id) {
      const Tensor gradient = rank.model.parameters().gradient(id);
      std::vector<float> values(static_cast<std::size_t>(gradient.numel()));
      Mt19937 rng(static_cast<std::uint32_t>(id));
      if (rank.rank == 0) rng.fill_normal(values, 0.0f, 1.0f);
      testing::write_values(rank.model.stream(), gradient, values);
    }
    rank.optimizer.step(rank.model.stream(), rank.model.step_block());
    return rank.model.read_step_block().grad_norm;
  };
  const float alone = norm(nullptr);
  for (const int ranks : {2, 3, 5}) {
    run_thread_ranks(ranks, [&](Communicator& comm) { EXPECT_EQ(norm(&comm), alone) << ranks; });
  }
}

TEST(Sharing, NanOfOneRankSkipsTheStepOnAll) {
  run_thread_ranks(3, [](Communicator& comm) {
    Rank rank(&comm, {.attached = false});
    rank.step(0);
    const auto before = rank.weights();
    rank.passes(1);
    if (comm.rank() == 1) {
      const Tensor gradient = rank.model.parameters().gradient("ln_f.bias");
      std::vector<float> values = read_values(rank.model.stream(), gradient);
      values[3] = std::numeric_limits<float>::quiet_NaN();
      testing::write_values(rank.model.stream(), gradient, values);
    }
    rank.optimizer.step(rank.model.stream(), rank.model.step_block());
    EXPECT_EQ(rank.model.read_step_block().skip, kNonFiniteGradient);
    EXPECT_TRUE(rank.weights() == before);
    EXPECT_EQ(rank.step(2).skip, kNoSkip);
    EXPECT_FALSE(rank.weights() == before);
  });
}

TEST(Sharing, StopOfOneRankReachesAll) {
  run_thread_ranks(3, [](Communicator& comm) {
    Rank rank(&comm, {});
    EXPECT_EQ(rank.step(0).stop, 0);
    EXPECT_EQ(rank.step(1, comm.rank() == 2 ? 15 : 0).stop, 15);
    EXPECT_EQ(rank.step(2).stop, 0);
  });
}

TEST(Sharing, SlicesOfTheStateAreTheWhole) {
  constexpr int kRanks = 4;
  std::map<std::string, std::vector<int>> held;
  std::size_t bytes[kRanks];
  run_thread_ranks(kRanks, [&](Communicator& comm) {
    Rank rank(&comm, {});
    bytes[comm.rank()] = rank.optimizer.arena().bytes();
    for (int turn = 0; turn < kRanks; ++turn) {
      comm.barrier(rank.model.stream());
      if (turn != comm.rank()) continue;
      rank.optimizer.visit_state([&](const StatePiece& piece) {
        std::vector<int>& counts = held[piece.name];
        counts.resize(static_cast<std::size_t>(piece.shape.numel()));
        for (std::int64_t i = 0; i < piece.tensor.numel(); ++i) {
          ++counts[static_cast<std::size_t>(piece.begin + i)];
        }
      });
    }
  });
  const Rank alone(nullptr, {});
  EXPECT_EQ(held.size(), 2 * alone.model.parameters().table().size());
  for (const auto& [name, counts] : held) {
    EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
  }
  for (const std::size_t b : bytes) EXPECT_LT(b, alone.optimizer.arena().bytes() / 2);
}

/// One of two ranks; the other's numbers are always what this one's memory holds.
class SilentCommunicator : public Communicator {
 public:
  std::string_view name() const override { return "silent"; }
  int rank() const override { return 1; }
  int size() const override { return 2; }
  void barrier(Stream&) override {}

 private:
  void do_all_reduce(Stream&, const Tensor&) override {}
  void do_reduce_scatter(Stream&, const Tensor&, const Tensor&) override {}
  void do_all_gather(Stream&, const Tensor&, const Tensor&) override {}
  void do_broadcast(Stream&, const Tensor&, int) override {}
};

TEST(Sharing, StepsAllocateNothing) {
  SilentCommunicator comm;
  for (const int stage : {0, 1}) {
    Rank rank(&comm, {.zero_stage = stage, .wire = DType::kBF16});
    const testing::TokenBatch batch =
        testing::random_batch(kSharedVocab, kSharedRows * kSharedT / 2, 1);
    const auto step = [&] {
      rank.model.begin_step({.lr = 0.01f, .seed = 3, .step = 0, .nominal_tokens = 540});
      rank.model.forward(batch.tokens, batch.targets);
      rank.model.backward();
      rank.optimizer.step(rank.model.stream(), rank.model.step_block());
    };
    step();
    const std::int64_t before = testing::allocations();
    for (int i = 0; i < 3; ++i) step();
    EXPECT_EQ(testing::allocations() - before, 0);
  }
}

TEST(Sharing, MarksAreOnEitherSideOfEveryWait) {
  static constexpr auto kDelay = std::chrono::milliseconds(20);
  struct SlowCommunicator : SilentCommunicator {
    void do_all_gather(Stream&, const Tensor&, const Tensor&) override {
      std::this_thread::sleep_for(kDelay);
    }
  } comm;
  Rank rank(&comm, {});
  Stream& stream = rank.model.stream();
  std::vector<TimeMark> marks;
  rank.optimizer.on_wait([&](Stream& s) { marks.emplace_back(s.device()).record(s); });
  const std::size_t buckets = rank.model.parameters().buckets().size();
  rank.passes(0);
  EXPECT_EQ(marks.size(), 2 * buckets) << "each bucket of gradients is sent";
  stream.synchronize();
  marks.clear();
  rank.optimizer.step(stream, rank.model.step_block());
  ASSERT_EQ(marks.size(), 2 * (1 + buckets)) << "all sums, and each bucket of parameters";
  double waited = 0;
  for (std::size_t i = 0; i < marks.size(); i += 2) waited += marks[i + 1].since(marks[i]);
  const double delays =
      std::chrono::duration<double>(kDelay).count() * static_cast<double>(1 + buckets);
  EXPECT_GE(waited, 0.99 * delays);
  EXPECT_LE(waited, marks.back().since(marks.front()));
  marks.clear();
  rank.passes(1);
  EXPECT_EQ(marks.size(), 4 * buckets) << "parameters are awaited, gradients sent";
}

/// Writes down which buckets are updated together, and when the parameters of one are gathered.
class ListedUpdates : public Optimizer {
 public:
  struct Ranks : SilentCommunicator {
    void do_all_gather(Stream&, const Tensor& out, const Tensor&) override { gathered(out); }
    std::function<void(const Tensor& out)> gathered;
  };

  ListedUpdates(const ParameterSet& parameters, Ranks* comm, int zero_stage)
      : Optimizer(parameters, {}, {comm, zero_stage}) {
    if (!comm) return;
    comm->gathered = [this](const Tensor& out) {
      for (std::size_t b = 0; b < this->parameters().buckets().size(); ++b) {
        if (out.raw() != this->parameters().bucket_values(b).raw()) continue;
        list.push_back(concat("gather ", b));
      }
    };
  }
  std::string_view name() const override { return "listed"; }

  std::vector<std::string> list;

 private:
  void update(Stream&, std::span<const UpdateRange> part, const StepBlock*) override {
    std::set<std::size_t> buckets;
    for (const UpdateRange& range : part) buckets.insert(range.bucket);
    list.emplace_back("update");
    for (const std::size_t b : buckets) list.back() += concat(' ', b);
  }
};

TEST(Sharing, TheFirstBucketIsSentBeforeTheOthersAreUpdated) {
  const auto list = [](ListedUpdates::Ranks* comm, int zero_stage) {
    Transformer model = testing::make_model(kSharedConfig, {.ranks = comm ? comm->size() : 1});
    ListedUpdates optimizer(model.parameters(), comm, zero_stage);
    optimizer.allocate(model.stream().device());
    optimizer.start(model.stream());
    optimizer.attach(model);
    optimizer.step(model.stream(), model.step_block());
    return optimizer.list;
  };
  ListedUpdates::Ranks comm;
  using List = std::vector<std::string>;
  // The second rank's slice of the final norm is padding.
  EXPECT_EQ(list(&comm, 1),
            (List{"update 0", "gather 0", "update 1 2", "gather 1", "gather 2", "gather 3"}));
  EXPECT_EQ(list(&comm, 0), List{"update 0 1 2 3"});
  EXPECT_EQ(list(nullptr, 1), List{"update 0 1 2 3"});
}

TEST(Sharing, ModelAndOptimizerMayEndInAnyOrder) {
  SilentCommunicator comm;
  auto rank = std::make_unique<Rank>(&comm, Setting{});
  rank->step(0);
  Transformer model = std::move(rank->model);
  AdamW optimizer = std::move(rank->optimizer);
  rank.reset();
  optimizer.step(model.stream(), model.step_block());
  { const AdamW last = std::move(optimizer); }
  const testing::TokenBatch batch = testing::random_batch(kSharedVocab, kSharedT, 1);
  EXPECT_GT(model.evaluate(batch.tokens, batch.targets, 1, kSharedT).loss_sum, 0);
}

TEST(Sharing, RefusesWhatDoesNotFit) {
  SilentCommunicator comm;
  const Transformer one = testing::make_model(kSharedConfig, {.seq_len = kSharedT});
  const Transformer two = testing::make_model(kSharedConfig, {.seq_len = kSharedT, .ranks = 2});
  const auto refuse = [&](const Transformer& model, const Sharing& sharing, const char* what) {
    expect_error(ErrorKind::kConfig, what,
                 [&] { AdamW(model.parameters(), {}, {}, true, sharing); });
  };
  refuse(two, {&comm, 2}, "zero_stage: expected 0 or 1, got 2");
  refuse(two, {&comm, 1, DType::kI32}, "wire: expected f32 or bf16");
  refuse(one, {&comm}, "planned for 2 ranks, got them for 1");
  refuse(two, {}, "planned for 1 ranks, got them for 2");
}

}  // namespace
}  // namespace llmc
