#pragma once

#include <cstdint>
#include <string_view>

namespace llmc {

/// How the learning rate falls once warm-up is over. With r from 0 to 1 over the steps that remain
/// and q = final_lr_fraction, it is lr times
enum class ScheduleKind {
  kConstant,  ///< 1
  kLinear,    ///< 1 − (1 − q)·r
  kCosine,    ///< q + (1 − q)·(1 + cos πr)/2 (Loshchilov and Hutter, 2017)
  kWsd,  ///< 1, then over the last decay_fraction of all steps q + (1 − q)·(1 − √r) (warm-up,
         ///< stable, decay; Hägele et al., 2024)
};

/// "constant", "linear", "cosine", "wsd".
std::string_view name_of(ScheduleKind kind);
/// Throws a config error that lists the names.
ScheduleKind schedule_from_name(std::string_view name);

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kCosine;
  double lr = 3e-4;                ///< the peak
  double final_lr_fraction = 0.1;  ///< of the peak, reached at the end
  std::int64_t warmup_steps = 0;   ///< step s of these has lr·(s + 1)/warmup_steps; comes first,
                                   ///< also where it outlasts the run or reaches into the decay
  std::int64_t max_steps = 1;
  double decay_fraction = 0.2;  ///< of max_steps; read only with wsd
};

/// The learning rate of every step.
class Schedule {
 public:
  /// Throws a config error that names the first option out of range.
  explicit Schedule(const ScheduleOptions& options);

  const ScheduleOptions& options() const { return options_; }
  /// step: 0-based. Past max_steps it stays at the final rate.
  float lr(std::int64_t step) const;

 private:
  ScheduleOptions options_;
  std::int64_t decay_begin_;  ///< first step of the fall
};

}  // namespace llmc
