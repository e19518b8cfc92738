#include "bench/exchange_times.h"

#include <algorithm>
#include <iterator>
#include <numeric>
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

std::vector<double> of_all_ranks(Communicator& comm, Stream& stream, double value) {
  constexpr std::int64_t kBytes = sizeof value;
  std::vector<double> values(static_cast<std::size_t>(comm.size()));
  const Buffer memory(stream.device(), values.size() * sizeof value);
  const Tensor all(memory.data(), DType::kU8, {kBytes * comm.size()});
  const Tensor own = all.flat(kBytes * comm.rank(), kBytes);
  copy_from_host(stream, own, &value);
  comm.all_gather(stream, all, own);
  copy_to_host(stream, values.data(), all);
  return values;
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

ExchangeTimes time_exchange(TrainingSteps& steps, Communicator& comm, double seconds) {
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
  Stream& stream = steps.model().stream();
  for (std::size_t i = 0; i < std::size(ways); ++i) {
    times.steps = std::min(times.steps, std::ssize(taken[i].seconds));
    const auto seconds_of = of_all_ranks(comm, stream, median(taken[i].seconds));
    const auto waited = of_all_ranks(comm, stream, median(taken[i].waited));
    times.*ways[i].step = {*std::max_element(seconds_of.begin(), seconds_of.end()),
                           std::accumulate(waited.begin(), waited.end(), 0.0) / comm.size()};
  }
  return times;
}

}  // namespace llmc::bench
