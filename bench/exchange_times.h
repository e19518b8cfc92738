#pragma once

#include <cstdint>

#include "bench/training_steps.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/process_group.h"

namespace llmc::bench {

/// Training steps without the exchange between ranks and with it at two times.
struct ExchangeTimes {
  struct Step {
    double seconds = 0;  ///< median on the slowest rank
    double waited = 0;   ///< of that, for other ranks: mean of the ranks' medians
  };
  Step alone;              ///< the same slices, but nothing is exchanged
  Step after;              ///< exchange after the passes
  Step beside;             ///< exchange beside the passes
  std::int64_t steps = 0;  ///< fewest that a median is of
  double bytes = 0;        ///< that a rank sends in a step, and receives

  /// What the exchange takes, and how long a step beside the passes waits for it. Without any, the
  /// faster rank waits for the slower one.
  double taken() const { return after.waited - alone.waited; }
  double shown() const { return beside.waited - alone.waited; }
  double hidden_share() const { return 1 - shown() / taken(); }
  /// How much longer the passes take beside it, as they share memory and power with it.
  double slowed() const { return beside.seconds - alone.seconds - shown(); }
};

/// Measures each of the three over at least `seconds`, in turn. Afterwards the optimizer of `steps`
/// is a new one, and weights may differ between ranks, on which no time depends.
ExchangeTimes time_exchange(TrainingSteps& steps, ProcessGroup& group, Communicator& comm,
                            double seconds);

}  // namespace llmc::bench
