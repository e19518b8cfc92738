#include "llmc/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/rng.h"
#include "llmc/optim/adamw.h"
#include "support/allocation_counter.h"
#include "support/temp_folder.h"
#include "support/tensor_values.h"
#include "support/test_tensor.h"

namespace llmc {
namespace {

using testing::expect_error;

/// Two buckets of parameters with random values, and a step block.
class Fixture {
 public:
  explicit Fixture(DType dtype, bool training = true) : parameters(dtype, training) {
    const auto normal = Initialiser::normal(0.5f);
    parameters.begin_bucket("first");
    parameters.declare("a.weight", {7, 11}, normal, OptimizerGroup::kDecay);
    parameters.declare("a.bias", {7}, normal, OptimizerGroup::kNoDecay);
    parameters.declare("n.weight", {130}, normal, OptimizerGroup::kNoDecay);
    parameters.begin_bucket("second", 0);
    parameters.declare("b.weight", {65, 67}, normal, OptimizerGroup::kDecay);
    parameters.plan(arena);
    arena.allocate(device);
    parameters.bind(arena);
    initialise(stream, parameters, 5);
  }

  void random_gradients(std::uint32_t seed) {
    Mt19937 rng(seed);
    for (ParameterSet::Id id = 0; id < parameters.table().size(); ++id) {
      std::vector<float> values(static_cast<std::size_t>(parameters.gradient(id).numel()));
      rng.fill_normal(values, 0.0f, 1.0f);
      testing::write_values(stream, parameters.gradient(id), values);
    }
  }

  void step(Optimizer& optimizer, float lr, std::int64_t index) {
    begin_step(stream, device_block.device(),
               {.lr = lr, .seed = 9, .step = index, .nominal_tokens = 4.0});
    block = device_block.get();
    block.loss_sum = 8.0;
    block.counted_tokens = 4;
    device_block.set(block);
    optimizer.step(stream, device_block.device());
    block = device_block.get();
  }

  std::vector<float> values(std::string_view name) {
    return testing::read_values(stream, parameters.value(name));
  }
  std::vector<char> bytes(std::string_view name) {
    return testing::read_bytes(stream, parameters.value(name));
  }

  Device device = Device::open();
  Stream stream{device};
  ParameterSet parameters;
  Arena arena;
  testing::TestStruct<StepBlock> device_block{stream};
  StepBlock block;  ///< as the last step left it
};

std::vector<char> all_state(Stream& stream, const Optimizer& optimizer) {
  std::vector<char> all;
  optimizer.visit_state([&](const StatePiece& piece) {
    const std::vector<char> part = testing::read_bytes(stream, piece.tensor);
    all.insert(all.end(), part.begin(), part.end());
  });
  return all;
}

TEST(UpdateRanges, CoverEveryParameterOnceWithItsGroup) {
  Fixture f(DType::kF32);
  const std::vector<UpdateRange> ranges = update_ranges(f.parameters);
  ASSERT_EQ(ranges.size(), 3u);  // a.weight | a.bias and n.weight | b.weight
  for (const Parameter& p : f.parameters.table()) {
    int covering = 0;
    for (const UpdateRange& r : ranges) {
      if (r.bucket != p.bucket || p.offset < r.begin ||
          p.offset + p.shape.numel() > r.begin + r.count) {
        continue;
      }
      ++covering;
      EXPECT_EQ(r.group, p.group);
      EXPECT_EQ(r.begin % 64, 0);
      EXPECT_EQ(r.first_index, f.parameters.buckets()[r.bucket].first_index + r.begin);
    }
    EXPECT_EQ(covering, 1) << p.name;
  }
}

TEST(AdamW, FollowsTheFormula) {
  Fixture f(DType::kF32);
  const AdamWOptions o{.beta1 = 0.8f, .beta2 = 0.9f, .eps = 1e-6f, .weight_decay = 0.3f};
  AdamW optimizer(f.parameters, o, {.grad_clip = 2.0f});
  optimizer.allocate(f.device);
  optimizer.start(f.stream);

  struct Reference {
    std::vector<double> theta, m, v;
    double decay;
  };
  std::vector<Reference> references;
  for (const Parameter& p : f.parameters.table()) {
    const std::vector<float> start = f.values(p.name);
    references.push_back({{start.begin(), start.end()},
                          std::vector<double>(start.size()),
                          std::vector<double>(start.size()),
                          p.group == OptimizerGroup::kDecay ? 0.3 : 0.0});
  }
  for (int t = 1; t <= 4; ++t) {
    f.random_gradients(static_cast<std::uint32_t>(t));
    double sum = 0;
    for (std::size_t b = 0; b < f.parameters.buckets().size(); ++b) {
      for (const float g : testing::read_values(f.stream, f.parameters.bucket_gradients(b))) {
        sum += std::pow(static_cast<double>(g), 2);
      }
    }
    const double norm = std::sqrt(sum);
    const double lr = 0.01 * t;
    f.step(optimizer, static_cast<float>(lr), t - 1);
    EXPECT_NEAR(f.block.grad_norm, norm, 1e-5 * norm);
    EXPECT_FLOAT_EQ(f.block.loss, 2.0f);
    EXPECT_EQ(f.block.updates, t);
    for (ParameterSet::Id id = 0; id < references.size(); ++id) {
      Reference& r = references[id];
      const std::vector<float> got = f.values(f.parameters.table()[id].name);
      const std::vector<float> gradient = testing::read_values(f.stream, f.parameters.gradient(id));
      for (std::size_t i = 0; i < r.theta.size(); ++i) {
        const double g = gradient[i] * 2.0 / norm;
        r.m[i] = 0.8 * r.m[i] + 0.2 * g;
        r.v[i] = 0.9 * r.v[i] + 0.1 * g * g;
        const double m_hat = r.m[i] / (1 - std::pow(0.8, t));
        const double v_hat = r.v[i] / (1 - std::pow(0.9, t));
        r.theta[i] -= lr * (m_hat / (std::sqrt(v_hat) + 1e-6) + r.decay * r.theta[i]);
        ASSERT_NEAR(got[i], r.theta[i], 1e-5) << f.parameters.table()[id].name << " " << i;
      }
    }
  }
}

TEST(AdamW, MastersKeepWhatBf16Rounds) {
  Fixture f(DType::kBF16);
  AdamW optimizer(f.parameters, {});
  optimizer.allocate(f.device);
  optimizer.start(f.stream);
  std::set<std::string> names;
  Tensor master;
  optimizer.visit_state([&](const StatePiece& piece) {
    names.insert(piece.name);
    EXPECT_EQ(piece.tensor.dtype(), DType::kF32);
    if (piece.name == "master.b.weight") master = piece.tensor;
  });
  EXPECT_EQ(names.size(), 3 * f.parameters.table().size());
  ASSERT_EQ(master.shape(), (Shape{65, 67}));
  EXPECT_EQ(testing::read_values(f.stream, master), f.values("b.weight"));
  f.random_gradients(3);
  f.step(optimizer, 1e-3f, 0);
  const std::vector<float> exact = testing::read_values(f.stream, master);
  const std::vector<float> stored = f.values("b.weight");
  int inexact = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    inexact += exact[i] != stored[i];
    ASSERT_LE(std::abs(stored[i] - exact[i]), std::abs(exact[i]) * 0x1p-7f) << i;
  }
  EXPECT_GT(inexact, master.numel() / 2);
}

TEST(AdamW, WithoutMastersBf16IsAllThereIs) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Fixture f(dtype);
    AdamW optimizer(f.parameters, {}, {}, false);
    EXPECT_FALSE(optimizer.has_master_weights());
    optimizer.allocate(f.device);
    optimizer.start(f.stream);
    std::size_t count = 0;
    optimizer.visit_state([&](const StatePiece&) { ++count; });
    EXPECT_EQ(count, 2 * f.parameters.table().size());
    const std::vector<char> before = f.bytes("b.weight");
    f.random_gradients(3);
    f.step(optimizer, 0.1f, 0);
    EXPECT_NE(f.bytes("b.weight"), before);
  }
}

TEST(Optimizer, SkippedStepsChangeNothing) {
  const float bad_values[] = {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity()};
  for (const float bad : bad_values) {
    Fixture f(DType::kF32);
    AdamW optimizer(f.parameters, {.weight_decay = 0.1f});
    optimizer.allocate(f.device);
    optimizer.start(f.stream);
    f.random_gradients(1);
    f.step(optimizer, 0.01f, 0);
    const std::vector<float> values = f.values("b.weight");
    const std::vector<char> state = all_state(f.stream, optimizer);
    const StepGuard guard = optimizer.read_guard(f.stream);
    EXPECT_EQ(guard.loss.count, 1);
    EXPECT_EQ(guard.loss.values[0], 2.0f);

    copy_from_host(f.stream, f.parameters.gradient("a.bias").flat(3, 1), &bad);
    f.step(optimizer, 0.01f, 1);
    EXPECT_EQ(f.block.skip, kNonFiniteGradient);
    EXPECT_EQ(f.block.updates, 1);
    EXPECT_EQ(f.values("b.weight"), values);
    EXPECT_EQ(all_state(f.stream, optimizer), state);
    const StepGuard after = optimizer.read_guard(f.stream);
    EXPECT_EQ(std::memcmp(&after, &guard, sizeof guard), 0);
  }
}

TEST(Optimizer, PaddingStaysZero) {
  Fixture f(DType::kF32);
  AdamW optimizer(f.parameters, {.weight_decay = 0.1f});
  optimizer.allocate(f.device);
  optimizer.start(f.stream);
  for (int t = 0; t < 3; ++t) {
    f.random_gradients(static_cast<std::uint32_t>(t));
    f.step(optimizer, 0.1f, t);
  }
  for (std::size_t b = 0; b < f.parameters.buckets().size(); ++b) {
    std::vector<char> used(static_cast<std::size_t>(f.parameters.buckets()[b].size));
    for (const Parameter& p : f.parameters.table()) {
      if (p.bucket != b) continue;
      std::fill_n(used.begin() + p.offset, p.shape.numel(), 1);
    }
    const std::vector<float> values = testing::read_values(f.stream, f.parameters.bucket_values(b));
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) {
        ASSERT_EQ(values[i], 0.0f);
      }
    }
  }
}

TEST(Optimizer, NothingIsAllocatedInAStep) {
  Fixture f(DType::kBF16);
  AdamW optimizer(f.parameters, {}, {.grad_clip = 1.0f});
  optimizer.allocate(f.device);
  optimizer.start(f.stream);
  f.random_gradients(1);
  f.step(optimizer, 0.01f, 0);
  const long before = testing::allocations();
  f.step(optimizer, 0.01f, 1);
  EXPECT_EQ(testing::allocations() - before, 0);
}

TEST(Optimizer, GuardStateRoundTrips) {
  Fixture f(DType::kF32);
  AdamW optimizer(f.parameters, {});
  optimizer.allocate(f.device);
  optimizer.start(f.stream);
  StepGuard guard;
  guard.loss.count = 3;
  guard.grad_norm.next = 5;
  guard.grad_norm.values[127] = 1.25f;
  optimizer.write_guard(f.stream, guard);
  const StepGuard back = optimizer.read_guard(f.stream);
  EXPECT_EQ(std::memcmp(&back, &guard, sizeof guard), 0);
}

/// θ ← θ − lr·(momentum ← 0.9·momentum + g), as a user would write it without kernels.
class Sgd : public Optimizer {
 public:
  Sgd(const Device& device, const ParameterSet& parameters)
      : Optimizer(parameters, {}),
        momentum_(declare_state("momentum")),
        decisions_(device, sizeof(StepBlock)) {}
  std::string_view name() const override { return "sgd"; }

 private:
  void update(Stream& stream, std::span<const UpdateRange> part,
              const StepBlock* device_block) override {
    decisions_.start(stream, device_block);
    const StepBlock block = *static_cast<const StepBlock*>(decisions_.wait());
    if (block.skip != kNoSkip) return;
    for (const UpdateRange& range : part) {
      std::vector<float> value = testing::read_values(stream, values(range));
      std::vector<float> momentum = testing::read_values(stream, state(momentum_, range));
      const std::vector<float> gradient = testing::read_values(stream, gradients(range));
      for (std::size_t i = 0; i < value.size(); ++i) {
        momentum[i] = 0.9f * momentum[i] + block.grad_scale * gradient[i];
        value[i] -= block.lr * momentum[i];
      }
      testing::write_values(stream, state(momentum_, range), momentum);
      testing::write_values(stream, values(range), value);
    }
  }

  StateId momentum_;
  Readback decisions_;
};

TEST(Optimizer, AnotherOneNeedsTwoFunctions) {
  Fixture f(DType::kF32);
  Sgd optimizer(f.device, f.parameters);
  optimizer.allocate(f.device);
  optimizer.start(f.stream);
  const float start = f.values("a.bias")[2];
  f.random_gradients(1);
  const float gradient = testing::read_values(f.stream, f.parameters.gradient("a.bias"))[2];
  f.step(optimizer, 0.5f, 0);
  f.step(optimizer, 0.5f, 1);
  EXPECT_NEAR(f.values("a.bias")[2], start - 0.5f * (gradient + 1.9f * gradient), 1e-5);
  std::set<std::string> names;
  optimizer.visit_state([&](const StatePiece& piece) { names.insert(piece.name); });
  EXPECT_TRUE(names.contains("momentum.a.bias"));
}

TEST(Optimizer, WrongUseIsRefused) {
  Fixture f(DType::kF32);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto refused = [&](const char* part, const AdamWOptions& o, const GuardOptions& g = {}) {
    expect_error(ErrorKind::kConfig, part, [&] { AdamW(f.parameters, o, g); });
  };
  refused("] beta1", {.beta1 = 1.0f});
  refused("] beta1", {.beta1 = nan});
  refused("] beta2", {.beta2 = -0.1f});
  refused("] eps", {.eps = 0.0f});
  refused("] weight_decay", {.weight_decay = -1.0f});
  refused("] grad_clip", {}, {.grad_clip = -1.0f});
  refused("] skip_loss_z", {}, {.skip_loss_z = nan});
  refused("] skip_grad_z", {}, {.skip_grad_z = -2.0f});

  AdamW optimizer(f.parameters, {});
  optimizer.allocate(f.device);
  expect_error(ErrorKind::kConfig, "start", [&] { f.step(optimizer, 0.1f, 0); });

  Fixture untrained(DType::kF32, false);
  expect_error(ErrorKind::kConfig, "gradients", [&] { AdamW(untrained.parameters, {}); });
  ParameterSet unplanned(DType::kF32);
  unplanned.begin_bucket("b");
  unplanned.declare("x", {3}, Initialiser::zeros(), OptimizerGroup::kDecay);
  expect_error(ErrorKind::kConfig, "plan", [&] { AdamW(unplanned, {}); });
}

}  // namespace
}  // namespace llmc
