#include "llmc/ops/loss.h"

#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "ops/cuda/kernel.cuh"
#include "ops/loss_check.h"

namespace llmc {
namespace cuda {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr double kLn2 = 0.69314718055994531;
/// Where maxima start: below all logits that the op takes, and times kLog2E still finite.
constexpr float kLowest = -1.0e38f;
/// Threads of all resident blocks of a multiprocessor: 64 registers for each.
constexpr int kResidentThreads = 1024;
constexpr int kSumThreads = 1024;

/// 2ˣ to 2 units in the last place; results below the normal numbers are 0.
__device__ float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Σ e^(x − largest) = Σ 2^(x·kLog2E − offset) over the logits seen so far. One fused multiply-add
/// takes x into the exponent, so its error is relative to the difference, however large the logits.
struct RunningSum {
  float largest = kLowest;
  float offset = kLowest * kLog2E;
  float sum = 0.0f;

  __device__ float exponential(float x) const { return exp2_flushed(fmaf(x, kLog2E, -offset)); }

  __device__ void raise(float to) {
    const float raised = __fmul_rn(to, kLog2E);
    sum *= exp2_flushed(__fsub_rn(offset, raised));
    largest = to;
    offset = raised;
  }

  template <int N>
  __device__ void add(const float (&x)[N]) {
    float top = largest;
#pragma unroll
    for (int i = 0; i < N; ++i) top = fmaxf(top, x[i]);
    raise(top);
    float part[2] = {};
#pragma unroll
    for (int i = 0; i < N; ++i) part[i % 2] += exponential(x[i]);
    sum += part[0] + part[1];
  }

  /// The sum of all lanes, in all lanes.
  __device__ void add_lanes() {
    raise(warp_max(largest));
    sum = warp_sum(sum);
  }
};

/// The sum of all threads of a block, in all of them. `partials`: shared memory of
/// kThreads / kWarp values, which may be reused after the barrier of the next call.
template <int kThreads>
__device__ RunningSum add_threads(RunningSum x, float2* partials) {
  x.add_lanes();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) partials[warp] = make_float2(x.largest, x.sum);
  __syncthreads();
  RunningSum total;
  if (lane < kThreads / kWarp) {
    total.raise(partials[lane].x);
    total.sum = partials[lane].y;
  }
  total.add_lanes();
  return total;
}

/// How rows are cut: from their first 16-byte boundary on, `vectors` whole vectors below the
/// vocabulary's end; the other columns, before and after, are edges, taken one by one.
struct Layout {
  std::int64_t rows;
  std::int64_t columns;
  int vocab_size;
  int vectors;
  int cached;  ///< vectors of a row that fit into a block's shared memory
};

template <class T>
struct Row {
  T* at;
  int head;         ///< columns before the first vector
  Vec<T>* vectors;  ///< in place
  std::int32_t target;

  __device__ Row(T* logits, const std::int32_t* targets, const Layout& layout, std::int64_t r)
      : at(logits + r * layout.columns),
        head((16 - static_cast<int>(reinterpret_cast<std::uintptr_t>(at) % 16)) % 16 /
             static_cast<int>(sizeof(T))),
        vectors(reinterpret_cast<Vec<T>*>(at + head)),
        target(r < layout.rows ? targets[r] : -1) {}

  __device__ bool counts() const { return target != -1; }
  __device__ std::int64_t column_of_edge(std::int64_t edge, const Layout& layout) const {
    return edge < head ? edge : edge + static_cast<std::int64_t>(layout.vectors) * kVec<T>;
  }
  /// The vector that holds a column, or else the edge that it is: which thread takes it, modulo
  /// the threads.
  __device__ int item_of(int column, const Layout& layout) const {
    if (column < head) return column;
    const int vector = (column - head) / kVec<T>;
    return vector < layout.vectors ? vector : column - layout.vectors * kVec<T>;
  }
};

/// Starts to copy a vector of the row into its place in shared memory, if the row counts.
template <class T>
__device__ void prefetch(Vec<T>* cache, const Row<T>& row, int i) {
  if (row.counts()) __pipeline_memcpy_async(&cache[i], &row.vectors[i], sizeof(Vec<T>));
}

/// Calls take(i, vector) for the thread's vectors of a row, then taken(i) if its place in shared
/// memory is free again.
template <int kThreads, class T, class Take, class Taken>
__device__ void for_vectors(const Vec<T>* cache, const Row<T>& row, const Layout& layout,
                            const Take& take, const Taken& taken) {
  int i = static_cast<int>(threadIdx.x);
#pragma unroll 4
  for (; i < layout.cached; i += kThreads) {
    const Vec<T> x = cache[i];
    take(i, x);
    taken(i);
  }
  for (; i < layout.vectors; i += kThreads) {
    const Vec<T> x = row.vectors[i];
    take(i, x);
  }
}

/// Calls take(column) for the thread's edges of a row.
template <int kThreads, class T, class Take>
__device__ void for_edges(const Row<T>& row, const Layout& layout, const Take& take) {
  const std::int64_t edges = layout.columns - static_cast<std::int64_t>(layout.vectors) * kVec<T>;
  for (std::int64_t e = threadIdx.x; e < edges; e += kThreads) {
    take(row.column_of_edge(e, layout));
  }
}

template <int kThreads, class T, class Taken>
__device__ RunningSum sum_row(const Vec<T>* cache, const Row<T>& row, const Layout& layout,
                              float2* partials, const Taken& taken) {
  RunningSum sum;
  const auto add = [&](int, const Vec<T>& x) {
    float values[kVec<T>];
#pragma unroll
    for (int j = 0; j < kVec<T>; ++j) values[j] = x.get(j);
    sum.add(values);
  };
  for_vectors<kThreads>(cache, row, layout, add, taken);
  for_edges<kThreads>(row, layout, [&](std::int64_t v) {
    if (v < layout.vocab_size) sum.add({to_float(row.at[v])});
  });
  return add_threads<kThreads>(sum, partials);
}

template <int kThreads, class T, class Taken>
__device__ void write_gradient(const Vec<T>* cache, const Row<T>& row, const Layout& layout,
                               const RunningSum& sum, float dloss, const Taken& taken) {
  const float factor = dloss / sum.sum;
  const auto write = [&](int i, const Vec<T>& x) {
    Vec<T> d;
#pragma unroll
    for (int j = 0; j < kVec<T>; ++j) d.set(j, sum.exponential(x.get(j)) * factor);
    row.vectors[i] = d;
  };
  for_vectors<kThreads>(cache, row, layout, write, taken);
  for_edges<kThreads>(row, layout, [&](std::int64_t v) {
    const float d = v < layout.vocab_size ? sum.exponential(to_float(row.at[v])) * factor : 0.0f;
    row.at[v] = from_float<T>(d);
  });
}

/// −log of the target's probability, NaN for a NaN logit.
__device__ float loss_of(const RunningSum& sum, float target_logit) {
  const double below = static_cast<double>(sum.offset) - static_cast<double>(target_logit) * kLog2E;
  const auto loss = static_cast<float>(below * kLn2 + logf(sum.sum));
  return loss < 0.0f ? 0.0f : loss;  // by rounding, where the probability is 1
}

/// A block per row, row after row. A row lies in shared memory while it is worked on, and the next
/// one is on its way there as soon as a vector's place is free; each thread touches only the
/// vectors that it loads, so none waits for another but in the sum. What does not fit is read
/// twice.
template <class T, int kThreads, bool kBackward>
__global__ void __launch_bounds__(kThreads, kResidentThreads / kThreads)
    cross_entropy_kernel(float* losses, T* logits, const std::int32_t* targets, Layout layout,
                         float dloss) {
  extern __shared__ int4 shared[];
  __shared__ float2 partials[2][kThreads / kWarp];
  auto* const cache = reinterpret_cast<Vec<T>*>(shared);
  const auto thread = static_cast<int>(threadIdx.x);
  int parity = 0;

  std::int64_t r = blockIdx.x;
  Row<T> row(logits, targets, layout, r);
  for (int i = thread; i < layout.cached; i += kThreads) prefetch(cache, row, i);
  __pipeline_commit();
  while (true) {
    const std::int64_t r_next = r + gridDim.x;
    const Row<T> next(logits, targets, layout, r_next);
    const auto refill = [&](int i) { prefetch(cache, next, i); };
    const auto keep = [](int) {};
    __pipeline_wait_prior(0);
    if (row.counts()) {
      const bool valid = row.target >= 0 && row.target < layout.vocab_size;
      // Whoever writes the target's gradient also reads its logit, before that.
      const bool answers = thread == (valid ? row.item_of(row.target, layout) % kThreads : 0);
      const float target_logit =
          answers && valid ? to_float(row.at[row.target]) : __int_as_float(0x7fffffff);
      float loss = 0.0f;
      if constexpr (kBackward) {
        const auto sum = sum_row<kThreads>(cache, row, layout, partials[parity], keep);
        if (answers) loss = loss_of(sum, target_logit);
        write_gradient<kThreads>(cache, row, layout, sum, dloss, refill);
        // p − 1 without cancellation.
        if (answers && valid) row.at[row.target] = from_float<T>(dloss * expm1f(-loss));
      } else {
        const auto sum = sum_row<kThreads>(cache, row, layout, partials[parity], refill);
        if (answers) loss = loss_of(sum, target_logit);
      }
      if (answers) losses[r] = loss;
      parity ^= 1;
    } else {
      if (thread == 0) losses[r] = 0.0f;
      const auto clear = [&](int i, const Vec<T>&) {
        if constexpr (kBackward) row.vectors[i] = Vec<T>{};
      };
      for_vectors<kThreads>(cache, row, layout, clear, refill);
      if constexpr (kBackward) {
        for_edges<kThreads>(row, layout, [&](std::int64_t v) { row.at[v] = from_float<T>(0.0f); });
      }
    }
    __pipeline_commit();
    if (r_next >= layout.rows) return;
    r = r_next;
    row = next;
  }
}

/// Adds the losses that count to the step's sums: one block, so that the order is fixed.
__global__ void __launch_bounds__(kSumThreads)
    add_losses_kernel(StepBlock* block, const float* losses, const std::int32_t* targets,
                      std::int64_t rows) {
  __shared__ double sums[kSumThreads / kWarp];
  __shared__ std::int64_t counts[kSumThreads / kWarp];
  double sum = 0;
  std::int64_t count = 0;
#pragma unroll 4
  for (std::int64_t r = threadIdx.x; r < rows; r += kSumThreads) {
    if (targets[r] == -1) continue;
    sum += losses[r];
    ++count;
  }
  sum = block_sum<kSumThreads>(sum, sums);
  count = block_sum<kSumThreads>(count, counts);
  if (threadIdx.x == 0) {
    block->loss_sum += sum;
    block->counted_tokens += count;
  }
}

template <class T, int kThreads, bool kBackward>
void launch(const Stream::Impl& stream, float* losses, T* logits, const std::int32_t* targets,
            Layout layout, float dloss) {
  const auto kernel = cross_entropy_kernel<T, kThreads, kBackward>;
  constexpr std::size_t kReserved = 1024;  // static, and what the system takes of each block
  const std::size_t available = stream.device.impl().shared_bytes - kReserved;
  layout.cached =
      static_cast<int>(std::min<std::size_t>(layout.vectors, available / sizeof(Vec<T>)));
  const std::size_t bytes = static_cast<std::size_t>(layout.cached) * sizeof(Vec<T>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of cross_entropy");
  const std::size_t fitting = (available + kReserved) / (bytes + kReserved);
  const auto resident =
      std::min<std::int64_t>(static_cast<std::int64_t>(fitting), kResidentThreads / kThreads);
  const unsigned grid = grid_of(stream, layout.rows, 1, resident);
  kernel<<<grid, kThreads, bytes, stream.stream>>>(losses, logits, targets, layout, dloss);
}

/// The loss of every row; logits turn into their gradient, scaled by dloss, if kBackward.
template <bool kBackward>
void cross_entropy(const char* op, Stream& stream, const Tensor& losses, const Tensor& logits,
                   const Tensor& targets, std::int64_t V, float dloss, StepBlock* block) {
  const LossSizes sizes = check_cross_entropy(op, losses, logits, targets, V);
  if (sizes.rows == 0) return;
  const CurrentDevice current(stream.impl().ordinal());
  auto* const loss = pointer<float>(losses);
  const auto* const target = pointer<std::int32_t>(targets);
  with_float_type(op, "logits", logits, [&]<class T>(std::type_identity<T>) {
    auto* const x = pointer<T>(logits);
    const int longest_head = aligned_rows<T>(sizes.padded_vocab_size, x) ? 0 : kVec<T> - 1;
    const auto vocab_size = static_cast<int>(V);
    const Layout layout{.rows = sizes.rows,
                        .columns = sizes.padded_vocab_size,
                        .vocab_size = vocab_size,
                        .vectors = std::max(0, vocab_size - longest_head) / kVec<T>,
                        .cached = 0};
    constexpr int kFewVectors = 1024;
    if (layout.vectors <= kFewVectors) {
      launch<T, 128, kBackward>(stream.impl(), loss, x, target, layout, dloss);
    } else {
      launch<T, 512, kBackward>(stream.impl(), loss, x, target, layout, dloss);
    }
  });
  check_launch(op);
  if (block == nullptr) return;
  add_losses_kernel<<<1, kSumThreads, 0, stream.impl().stream>>>(block, loss, target, sizes.rows);
  check_launch(op);
}

}  // namespace
}  // namespace cuda

void cross_entropy_forward(Stream& stream, const Tensor& losses, const Tensor& logits,
                           const Tensor& targets, std::int64_t vocab_size, StepBlock* block) {
  cuda::cross_entropy<false>("cross_entropy_forward", stream, losses, logits, targets, vocab_size,
                             0.0f, block);
}

void cross_entropy_backward(Stream& stream, const Tensor& losses, const Tensor& logits,
                            const Tensor& targets, std::int64_t vocab_size, float dloss,
                            StepBlock* block) {
  cuda::cross_entropy<true>("cross_entropy_backward", stream, losses, logits, targets, vocab_size,
                            dloss, block);
}

}  // namespace llmc
