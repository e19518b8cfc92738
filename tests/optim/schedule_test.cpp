#include "llmc/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "llmc/core/error.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

constexpr ScheduleKind kKinds[] = {ScheduleKind::kConstant, ScheduleKind::kLinear,
                                   ScheduleKind::kCosine, ScheduleKind::kWsd};

ScheduleOptions options(ScheduleKind kind, std::int64_t warmup = 0, std::int64_t steps = 100,
                        double final_fraction = 0.1) {
  return {.kind = kind,
          .lr = 0.5,
          .final_lr_fraction = final_fraction,
          .warmup_steps = warmup,
          .max_steps = steps};
}

TEST(Schedule, EveryKindWarmsUp) {
  for (const ScheduleKind kind : kKinds) {
    const Schedule schedule(options(kind, 10));
    EXPECT_FLOAT_EQ(schedule.lr(0), 0.05f) << name_of(kind);
    EXPECT_FLOAT_EQ(schedule.lr(4), 0.25f) << name_of(kind);
    EXPECT_FLOAT_EQ(schedule.lr(9), 0.5f) << name_of(kind);
    EXPECT_FLOAT_EQ(schedule.lr(10), 0.5f) << name_of(kind);
  }
}

TEST(Schedule, ClosedForms) {
  const Schedule constant(options(ScheduleKind::kConstant, 10));
  const Schedule linear(options(ScheduleKind::kLinear, 10));
  const Schedule cosine(options(ScheduleKind::kCosine, 10));
  const Schedule wsd(options(ScheduleKind::kWsd, 10));
  for (std::int64_t step = 10; step < 100; ++step) {
    const double r = static_cast<double>(step - 10) / 90.0;
    EXPECT_EQ(constant.lr(step), 0.5f);
    EXPECT_FLOAT_EQ(linear.lr(step), static_cast<float>(0.5 - r * 0.45));
    EXPECT_FLOAT_EQ(cosine.lr(step),
                    static_cast<float>(0.05 + 0.225 * (1.0 + std::cos(std::numbers::pi * r))));
    const double tail = step < 80 ? 0.0 : static_cast<double>(step - 80) / 20.0;
    EXPECT_FLOAT_EQ(wsd.lr(step), static_cast<float>(0.05 + (1.0 - std::sqrt(tail)) * 0.45));
  }
}

TEST(Schedule, StaysAtTheFinalRate) {
  for (const ScheduleKind kind : kKinds) {
    const Schedule schedule(options(kind, 3, 50, 0.25));
    const float expected = kind == ScheduleKind::kConstant ? 0.5f : 0.125f;
    EXPECT_FLOAT_EQ(schedule.lr(50), expected) << name_of(kind);
    EXPECT_FLOAT_EQ(schedule.lr(5000), expected) << name_of(kind);
  }
}

TEST(Schedule, DecayFraction) {
  ScheduleOptions o = options(ScheduleKind::kWsd, 0, 10, 0.0);
  o.decay_fraction = 0.9;  // (1 − 0.9)·10 is just below 1 in binary
  EXPECT_FLOAT_EQ(Schedule(o).lr(1), 0.5f);
  EXPECT_LT(Schedule(o).lr(2), 0.5f);
  o.decay_fraction = 0.0;
  EXPECT_FLOAT_EQ(Schedule(o).lr(9), 0.5f);
  o.decay_fraction = 1.0;
  EXPECT_FLOAT_EQ(Schedule(o).lr(0), 0.5f);
  EXPECT_LT(Schedule(o).lr(1), 0.5f);
}

TEST(Schedule, WarmUpMayOutlastTheRestOrTheRun) {
  for (const ScheduleKind kind : kKinds) {
    const Schedule schedule(options(kind, 400));
    EXPECT_FLOAT_EQ(schedule.lr(99), 0.125f) << name_of(kind);
    EXPECT_FLOAT_EQ(schedule.lr(399), 0.5f) << name_of(kind);
  }
  const Schedule late(options(ScheduleKind::kWsd, 90));  // the fall would begin at step 80
  EXPECT_FLOAT_EQ(late.lr(89), 0.5f);
  EXPECT_FLOAT_EQ(late.lr(90), 0.5f);
  EXPECT_FLOAT_EQ(late.lr(95), static_cast<float>(0.05 + (1.0 - std::sqrt(0.5)) * 0.45));
}

TEST(Schedule, NeverRisesAfterWarmUp) {
  for (const ScheduleKind kind : kKinds) {
    const Schedule schedule(options(kind, 7, 61));
    for (std::int64_t step = 7; step < 61; ++step) {
      EXPECT_LE(schedule.lr(step + 1), schedule.lr(step)) << name_of(kind) << " " << step;
    }
  }
}

TEST(Schedule, OptionsOutOfRangeAreNamed) {
  const auto refused = [](const char* option, auto change) {
    ScheduleOptions o = options(ScheduleKind::kWsd, 10);
    change(o);
    testing::expect_error(ErrorKind::kConfig, option, [&] { Schedule{o}; });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused("] lr", [](auto& o) { o.lr = -1; });
  refused("] lr", [&](auto& o) { o.lr = nan; });
  refused("] final_lr_fraction", [](auto& o) { o.final_lr_fraction = 1.5; });
  refused("] final_lr_fraction", [&](auto& o) { o.final_lr_fraction = nan; });
  refused("] max_steps", [](auto& o) { o.max_steps = 0; });
  refused("] warmup_steps", [](auto& o) { o.warmup_steps = -1; });
  refused("] decay_fraction", [](auto& o) { o.decay_fraction = -0.1; });
  refused("] decay_fraction", [](auto& o) { o.decay_fraction = 1.1; });
  testing::expect_error(ErrorKind::kInput, "step",
                        [] { Schedule(options(ScheduleKind::kCosine)).lr(-1); });
}

TEST(Schedule, Names) {
  for (const ScheduleKind kind : kKinds) EXPECT_EQ(schedule_from_name(name_of(kind)), kind);
  testing::expect_error(ErrorKind::kConfig, "'Cosine'", [] { schedule_from_name("Cosine"); });
}

}  // namespace
}  // namespace llmc
