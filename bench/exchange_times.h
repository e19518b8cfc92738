#pragma once

#include <cstdint>

#include "bench/training_steps.h"
#include "llmc/comm/communicator.h"

namespace llmc::bench {

/// Seconds of a training step, without the exchange between ranks and with it at two times: medians
/// on the slowest rank.
struct ExchangeTimes {
  double alone = 0;        ///< the same slices, but nothing is exchanged
  double after = 0;        ///< exchange after the passes
  double beside = 0;       ///< exchange beside the passes
  std::int64_t steps = 0;  ///< fewest that a median is of
  double bytes = 0;        ///< that a rank sends in a step, and receives

  /// What the exchange takes, and what of it a step beside the passes still shows.
  double taken() const { return after - alone; }
  double shown() const { return beside - alone; }
  double hidden_share() const { return 1 - shown() / taken(); }
};

/// Measures each of the three over at least `seconds`, in turn. Afterwards the optimizer of `steps`
/// is a new one, and weights may differ between ranks, on which no time depends.
ExchangeTimes time_exchange(TrainingSteps& steps, Communicator& comm, double seconds);

}  // namespace llmc::bench
