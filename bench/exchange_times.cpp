#include "bench/exchange_times.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "bench/timing.h"

namespace llmc::bench {
namespace {

/// Ranks that exchange neither gradients nor parameters: each goes on with what it has. They still
/// tell each other of every step, and so wait for the slowest as they always do.
class SilentRanks : public Communicator {
 public:
  explicit SilentRanks(Communicator& ranks) : ranks_(ranks) {}
  std::string_view name() const override { return "silent"; }
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  void barrier(Stream& stream) override { ranks_.barrier(stream); }

 private:
  void do_all_reduce(Stream&, const Tensor&) override {}
  void do_reduce_scatter(Stream&, const Tensor&, const Tensor&) override {}
  void do_all_gather(Stream& stream, const Tensor& out, const Tensor& in) override {
    if (in.dtype() == DType::kU8) ranks_.all_gather(stream, out, in);  // what is told of a step
  }
  void do_broadcast(Stream&, const Tensor&, int) override {}

  Communicator& ranks_;
};

/// The slowest rank's step, and the mean of what the ranks wait. own: this rank's.
ExchangeTimes::Step of_all_ranks(ProcessGroup& group, const ExchangeTimes::Step& own) {
  ExchangeTimes::Step all;
  for (const std::string& bytes : group.gather({reinterpret_cast<const char*>(&own), sizeof own})) {
    ExchangeTimes::Step step;
    std::memcpy(&step, bytes.data(), sizeof step);
    all.seconds = std::max(all.seconds, step.seconds);
    all.waited += step.waited / group.size();
  }
  return all;
}

/// A reduce-scatter of the gradients and an all-gather: with ZeRO-1 of the parameters, else of the
/// gradients. Each moves all ranks' slices but the own one.
double bytes_sent(const ParameterSet& parameters, const Sharing& sharing) {
  const std::size_t gathered = size_of(sharing.sliced() ? parameters.dtype() : sharing.wire);
  double elements = 0;
  for (const Bucket& bucket : parameters.buckets()) elements += static_cast<double>(bucket.size);
  const double others = static_cast<double>(sharing.ranks() - 1) / sharing.ranks();
  return elements * static_cast<double>(size_of(sharing.wire) + gathered) * others;
}

}  // namespace

ExchangeTimes time_exchange(TrainingSteps& steps, ProcessGroup& group, Communicator& comm,
                            double seconds) {
  constexpr int kRounds = 2;  // so that a drift of the machine's speed meets all three
  SilentRanks silent(comm);
  const struct {
    Communicator* comm;
    ExchangeTime when;
    ExchangeTimes::Step ExchangeTimes::*step;
  } ways[] = {{&silent, ExchangeTime::kBesidePasses, &ExchangeTimes::alone},
              {&comm, ExchangeTime::kAfterPasses, &ExchangeTimes::after},
              {&comm, ExchangeTime::kBesidePasses, &ExchangeTimes::beside}};
  TrainingSteps::Taken taken[std::size(ways)];
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < std::size(ways); ++i) {
      steps.start_optimizer(ways[i].comm, ways[i].when);
      steps.take(2);
      taken[i].append(steps.measure(seconds / kRounds));
    }
  }
  ExchangeTimes times;
  times.bytes = bytes_sent(steps.model().parameters(), steps.optimizer().sharing());
  times.steps = std::ssize(taken[0].seconds);
  for (std::size_t i = 0; i < std::size(ways); ++i) {
    times.steps = std::min(times.steps, std::ssize(taken[i].seconds));
    times.*ways[i].step = of_all_ranks(group, {median(taken[i].seconds), median(taken[i].waited)});
  }
  return times;
}

}  // namespace llmc::bench
