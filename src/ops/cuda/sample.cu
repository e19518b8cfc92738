#include "llmc/ops/sample.h"

#include "ops/cuda/kernel.cuh"
#include "ops/sample_check.h"
#include "ops/sample_select.h"

namespace llmc {
namespace cuda {
namespace {

using sampling::Amount;
using sampling::Cut;
using sampling::Search;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
/// Histograms that lanes of a warp fill side by side, so that few of them meet in one bin.
constexpr int kCopies = 8;

struct Shared {
  Amount histograms[kCopies][sampling::kDigits];
  Amount amounts[kWarps];
  unsigned long long best[kWarps];
  Search search;
  int finite;
  int token;
};

/// Sum over the threads before this one; `total` becomes that over all. Every thread calls it.
__device__ Amount sum_before(Amount x, Amount& total, Amount (&warps)[kWarps]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  Amount sum = x;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Amount other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();  // whoever still reads the sums of the call before
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  Amount before = 0;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  return before + sum - x;
}

/// One row of logits under a rule, drawn from by a block of threads.
template <class T>
class Row {
 public:
  __device__ Row(const T* logits, const std::uint8_t* seen, const SampleRule& rule, Shared& shared)
      : logits_(logits), seen_(seen), rule_(rule), shared_(shared) {}

  /// −1 where a logit is not finite. The same in every thread.
  __device__ std::int32_t draw(std::uint64_t random) {
    const std::int32_t likeliest = find_likeliest();
    if (likeliest < 0 || rule_.temperature == 0.0f) return likeliest;
    largest_ = value(likeliest);
    restrict();
    return at(random);
  }

 private:
  __device__ float value(std::int64_t id) const {
    const float logit = to_float(logits_[id]);
    return seen_ != nullptr && seen_[id] != 0 ? sampling::penalised(logit, rule_.repetition_penalty)
                                              : logit;
  }
  __device__ Amount probability(float x, float min_p = 0.0f) const {
    return sampling::probability(x, largest_, rule_.temperature, min_p);
  }
  template <class Visit>
  __device__ void for_each(const Visit& visit) const {
    for (std::int64_t id = threadIdx.x; id < rule_.vocab_size; id += kThreads) visit(value(id), id);
  }

  __device__ std::int32_t find_likeliest() {
    // Key and then id, the lower first, as one number.
    unsigned long long best = 0;
    bool finite = true;
    for_each([&](float x, std::int64_t id) {
      finite &= sampling::is_finite(x);
      const unsigned long long mine = static_cast<unsigned long long>(sampling::key_of(x)) << 32 |
                                      (0xffffffffu - static_cast<std::uint32_t>(id));
      if (mine > best) best = mine;
    });
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const unsigned long long other = __shfl_xor_sync(0xffffffffu, best, offset);
      if (other > best) best = other;
    }
    if (threadIdx.x % kWarp == 0) shared_.best[threadIdx.x / kWarp] = best;
    if (__syncthreads_and(finite) == 0) return -1;
    for (int w = 0; w < kWarps; ++w) {
      if (shared_.best[w] > best) best = shared_.best[w];
    }
    return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
  }

  /// Sets the cut to what top_k and then top_p leave.
  __device__ void restrict() {
    if (rule_.top_k > 0 && rule_.top_k < rule_.vocab_size) {
      const Search search = find(static_cast<Amount>(rule_.top_k), [](float) { return Amount{1}; });
      cut_ = {search.prefix, search.wanted};
    }
    if (rule_.top_p < 1.0f) {
      Amount mine = 0, total = 0;
      for_each([&](float x, std::int64_t) {
        if (sampling::key_of(x) > cut_.key) mine += probability(x);
      });
      sum_before(mine, total, shared_.amounts);
      if (cut_.ties > 0) total += cut_.ties * probability(sampling::value_of(cut_.key));
      const Search search =
          find(sampling::part_of(total, rule_.top_p), [this](float x) { return probability(x); });
      cut_ = sampling::cut_of(search, probability(sampling::value_of(search.prefix)));
    }
  }

  /// Finds where the likeliest of the tokens left reach `wanted`.
  template <class Weight>
  __device__ Search find(Amount wanted, const Weight& weight) {
    const int thread = static_cast<int>(threadIdx.x);
    __syncthreads();
    if (thread == 0) {
      shared_.search = Search{};
      shared_.search.wanted = wanted;
    }
    for (int round = 0; round < sampling::kRounds; ++round) {
      for (int i = thread; i < kCopies * sampling::kDigits; i += kThreads) {
        shared_.histograms[i / sampling::kDigits][i % sampling::kDigits] = 0;
      }
      __syncthreads();
      const Search search = shared_.search;
      Amount* const histogram = shared_.histograms[thread % kCopies];
      for_each([&](float x, std::int64_t) {
        const std::uint32_t key = sampling::key_of(x);
        if (key > cut_.key && search.counts(key)) {
          const Amount amount = weight(x);
          if (amount > 0) atomicAdd(&histogram[search.digit(key)], amount);
        }
      });
      if (thread == 0 && cut_.ties > 0 && search.counts(cut_.key)) {
        atomicAdd(&histogram[search.digit(cut_.key)],
                  cut_.ties * weight(sampling::value_of(cut_.key)));
      }
      __syncthreads();
      if (thread < sampling::kDigits) {
        Amount sum = 0;
        for (int copy = 0; copy < kCopies; ++copy) sum += shared_.histograms[copy][thread];
        shared_.histograms[0][thread] = sum;
      }
      __syncthreads();
      if (thread == 0) shared_.search.narrow(shared_.histograms[0]);
      __syncthreads();
    }
    return shared_.search;
  }

  /// Each thread takes a stretch of ids; the one in whose stretch the point lies finds the token.
  __device__ std::int32_t at(std::uint64_t random) {
    const std::int64_t length = ceil_div(rule_.vocab_size, kThreads);
    const std::int64_t begin = threadIdx.x * length;
    const std::int64_t end = begin + length < rule_.vocab_size ? begin + length : rule_.vocab_size;
    Amount my_ties = 0, all_ties = 0;
    for (std::int64_t id = begin; id < end; ++id) {
      if (sampling::key_of(value(id)) == cut_.key) ++my_ties;
    }
    const Amount ties_before = sum_before(my_ties, all_ties, shared_.amounts);
    Amount mine = 0, total = 0;
    const auto walk = [&](const auto& visit) {
      Amount ties = ties_before;
      for (std::int64_t id = begin; id < end; ++id) {
        const float x = value(id);
        const std::uint32_t key = sampling::key_of(x);
        if (key < cut_.key || (key == cut_.key && ties++ >= cut_.ties)) continue;
        if (visit(id, probability(x, rule_.min_p))) break;
      }
    };
    walk([&](std::int64_t, Amount p) {
      mine += p;
      return false;
    });
    Amount passed = sum_before(mine, total, shared_.amounts);
    const Amount point = sampling::point_in(total, random);
    if (point >= passed && point - passed < mine) {
      walk([&](std::int64_t id, Amount p) {
        passed += p;
        if (passed <= point) return false;
        shared_.token = static_cast<int>(id);
        return true;
      });
    }
    __syncthreads();
    return shared_.token;
  }

  const T* logits_;
  const std::uint8_t* seen_;
  const SampleRule& rule_;
  Shared& shared_;
  float largest_ = 0;
  Cut cut_;
};

/// A block per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sample_kernel(std::int32_t* tokens, std::uint8_t* seen, std::int64_t seen_columns,
                  const T* logits, std::int64_t columns, const SampleRule rule,
                  std::int64_t first_sample, std::int64_t draw) {
  __shared__ Shared shared;
  const std::int64_t b = blockIdx.x;
  std::uint8_t* const marks = seen == nullptr ? nullptr : seen + b * seen_columns;
  Row<T> row(logits + b * columns, marks, rule, shared);
  const std::int32_t token = row.draw(sampling::random_of(rule.seed, first_sample + b, draw));
  if (threadIdx.x == 0) {
    tokens[b] = token;
    if (marks != nullptr && token >= 0) marks[token] = 1;
  }
}

}  // namespace
}  // namespace cuda

void sample_tokens(Stream& stream, const Tensor& tokens, const Tensor& seen, const Tensor& logits,
                   const SampleRule& rule, std::int64_t first_sample, std::int64_t draw) {
  constexpr const char* kOp = "sample_tokens";
  const std::int64_t B = check_sample_tokens(tokens, seen, logits, rule, first_sample, draw);
  if (B == 0) return;
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::with_float_type(kOp, "logits", logits, [&]<class T>(std::type_identity<T>) {
    cuda::sample_kernel<T><<<static_cast<unsigned>(B), cuda::kThreads, 0, stream.impl().stream>>>(
        tokens.data<std::int32_t>(), seen ? seen.data<std::uint8_t>() : nullptr,
        seen ? seen.dim(1) : 0, cuda::pointer<const T>(logits), logits.dim(1), rule, first_sample,
        draw);
  });
  cuda::check_launch(kOp);
}

}  // namespace llmc
