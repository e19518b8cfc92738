#include "llmc/train/events.h"

#include <type_traits>

namespace llmc {

std::string_view name_of(StopReason reason) {
  switch (reason) {
    case StopReason::kFinished:
      return "finished";
    case StopReason::kSink:
      return "sink";
    case StopReason::kSignal:
      return "signal";
    case StopReason::kBadSteps:
      return "bad steps";
  }
  return "unknown";
}

std::string_view name_of(SkipReason reason) {
  switch (reason) {
    case kNoSkip:
      return "none";
    case kNonFiniteLoss:
      return "loss not finite";
    case kNonFiniteGradient:
      return "gradient not finite";
    case kLossOutlier:
      return "loss outlier";
    case kGradientOutlier:
      return "gradient outlier";
    case kNoTargets:
      return "no targets";
  }
  return "unknown";
}

std::int64_t step_of(const Event& event) {
  return std::visit(
      [](const auto& e) {
        if constexpr (std::is_same_v<std::decay_t<decltype(e)>, StartEvent>) {
          return e.first_step;
        } else {
          return e.step;
        }
      },
      event);
}

}  // namespace llmc
