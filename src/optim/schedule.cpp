#include "llmc/optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::array<std::pair<ScheduleKind, std::string_view>, 4> kNames{
    {{ScheduleKind::kConstant, "constant"},
     {ScheduleKind::kLinear, "linear"},
     {ScheduleKind::kCosine, "cosine"},
     {ScheduleKind::kWsd, "wsd"}}};

void check(bool good, std::string_view option, std::string_view expected, double got) {
  if (!good) {
    fail(ErrorKind::kConfig, "schedule", option, ": expected ", expected, ", got ", got);
  }
}

/// Fraction of the peak after a share r of the fall.
double fraction(ScheduleKind kind, double final_fraction, double r) {
  switch (kind) {
    case ScheduleKind::kConstant:
      return 1.0;
    case ScheduleKind::kLinear:
      return 1.0 - (1.0 - final_fraction) * r;
    case ScheduleKind::kCosine:
      return final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + std::cos(std::numbers::pi * r));
    case ScheduleKind::kWsd:
      return final_fraction + (1.0 - final_fraction) * (1.0 - std::sqrt(r));
  }
  return 1.0;
}

}  // namespace

std::string_view name_of(ScheduleKind kind) {
  for (const auto& [candidate, name] : kNames) {
    if (candidate == kind) return name;
  }
  return "unknown";
}

ScheduleKind schedule_from_name(std::string_view name) {
  for (const auto& [kind, candidate] : kNames) {
    if (candidate == name) return kind;
  }
  fail(ErrorKind::kConfig, "schedule", "schedule: expected constant, linear, cosine or wsd, got '",
       name, "'");
}

Schedule::Schedule(const ScheduleOptions& options)
    : options_(options), decay_begin_(options.warmup_steps) {
  const ScheduleOptions& o = options_;
  check(std::isfinite(o.lr) && o.lr >= 0, "lr", "a finite number of at least 0", o.lr);
  check(o.final_lr_fraction >= 0 && o.final_lr_fraction <= 1, "final_lr_fraction", "0 to 1",
        o.final_lr_fraction);
  check(o.max_steps >= 1, "max_steps", "at least 1", static_cast<double>(o.max_steps));
  check(o.warmup_steps >= 0, "warmup_steps", "at least 0", static_cast<double>(o.warmup_steps));
  check(o.decay_fraction >= 0 && o.decay_fraction <= 1, "decay_fraction", "0 to 1",
        o.decay_fraction);
  if (o.kind == ScheduleKind::kWsd) {
    // The small shift keeps products such as (1 − 0.9)·10, just below 1 in binary, whole.
    const double begin = (1.0 - o.decay_fraction) * static_cast<double>(o.max_steps);
    decay_begin_ =
        std::max(o.warmup_steps, static_cast<std::int64_t>(std::floor(begin * (1.0 + 1e-12))));
  }
}

float Schedule::lr(std::int64_t step) const {
  const ScheduleOptions& o = options_;
  if (step < 0) fail(ErrorKind::kInput, "schedule", "step: expected at least 0, got ", step);
  if (step < o.warmup_steps) {
    return static_cast<float>(o.lr * static_cast<double>(step + 1) /
                              static_cast<double>(o.warmup_steps));
  }
  const auto fall = static_cast<double>(std::max<std::int64_t>(1, o.max_steps - decay_begin_));
  const double r = std::clamp(static_cast<double>(step - decay_begin_) / fall, 0.0, 1.0);
  return static_cast<float>(o.lr * fraction(o.kind, o.final_lr_fraction, r));
}

}  // namespace llmc
