#include "ops/cuda/matmul_tuning.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <type_traits>

#include "core/cuda/counters.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc::cuda {
namespace {

/// A round runs every algorithm that is still in the race. Several rounds, so that a clock that
/// changes with the load favours none.
constexpr int kRounds = 4;
/// A measurement repeats a short product until it takes about this long.
constexpr double kMeasureMicroseconds = 300;
constexpr int kMaxRepeats = 20;
/// About how long the rounds after the first may take.
constexpr double kBudgetMicroseconds = 100e3;
/// Algorithms slower than the fastest by this factor leave the race.
constexpr double kHopeless = 1.15;

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;

Event make_event() {
  cudaEvent_t made = nullptr;
  check(cudaEventCreate(&made), "cannot make an event");
  return Event(made);
}

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Race {
  cublasLtHandle_t handle;
  const MatmulPlan& plan;
  Stream::Impl& stream;
  const Product& product;
  void* c;
  Event begin = make_event(), end = make_event();

  /// Microseconds of one product; never if it does not run.
  double measure(const cublasLtMatmulAlgo_t& algorithm, int repeats) const {
    check(cudaEventRecord(begin.get(), stream.stream), "cannot time a product");
    for (int i = 0; i < repeats; ++i) {
      if (launch(handle, plan, algorithm, stream, product, c) != CUBLAS_STATUS_SUCCESS) {
        return kNever;
      }
    }
    check(cudaEventRecord(end.get(), stream.stream), "cannot time a product");
    wait(end.get());
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cannot time a product");
    return 1e3 * static_cast<double>(milliseconds) / repeats;
  }
};

struct Runner {
  std::size_t index;
  double last;       ///< microseconds in the newest round
  double total = 0;  ///< of the rounds that count
};

/// Takes those out that do not run or were far behind in the newest round; the others stay in
/// order.
void drop_hopeless(std::vector<Runner>& runners) {
  double best = kNever;
  for (const Runner& runner : runners) best = std::min(best, runner.last);
  std::erase_if(runners, [best](const Runner& runner) {
    return runner.last == kNever || runner.last > kHopeless * best;
  });
}

TimedAlgorithm winner(const Race& race, const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  std::vector<Runner> runners;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    race.measure(candidates[i], 1);  // loads the kernel
    runners.push_back({i, race.measure(candidates[i], 1)});
  }
  drop_hopeless(runners);
  if (runners.empty()) return {};

  const double estimate = runners.front().last;
  const int repeats =
      static_cast<int>(std::clamp(kMeasureMicroseconds / estimate, 1.0, double{kMaxRepeats}));
  const double round = estimate * repeats * static_cast<double>(runners.size());
  const int rounds =
      static_cast<int>(std::clamp(kBudgetMicroseconds / round, 1.0, double{kRounds}));
  for (int r = 0; r < rounds; ++r) {
    for (Runner& runner : runners) {
      runner.last = race.measure(candidates[runner.index], repeats);
      runner.total += runner.last;
    }
    drop_hopeless(runners);
  }
  if (runners.empty()) return {};
  const Runner& best =
      *std::min_element(runners.begin(), runners.end(),
                        [](const Runner& a, const Runner& b) { return a.total < b.total; });
  return {best.index, best.total / rounds};
}

}  // namespace

TimedAlgorithm fastest_algorithm(cublasLtHandle_t handle, const MatmulPlan& plan,
                                 const std::vector<cublasLtMatmulAlgo_t>& candidates,
                                 Stream::Impl& stream, const Product& product) {
  try {
    const auto elements = static_cast<std::size_t>(product.m) * static_cast<std::size_t>(product.n);
    const Buffer c(stream.device, elements * size_of(product.c_type));
    // The inputs are the caller's: their values, and so the power they take, are those of real
    // work.
    return winner({handle, plan, stream, product, c.data()}, candidates);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kMemory) throw;
    log(LogLevel::kWarning,
        concat("[matmul] no memory to time algorithms, the library's choice is used: ",
               error.what()));
    return {};
  }
}

}  // namespace llmc::cuda
