#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "core/cpu/device_impl.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace llmc::cpu {

/// Runs fn(thread, threads) on every thread of a team of at most `wanted` and returns when all are
/// done. The first exception thrown inside is thrown again here. Without OpenMP the team is one
/// thread.
template <class Fn>
void parallel_region([[maybe_unused]] int wanted, const Fn& fn) {
  std::exception_ptr error;
#ifdef _OPENMP
#pragma omp parallel num_threads(wanted)
  {
    try {
      fn(omp_get_thread_num(), omp_get_num_threads());
    } catch (...) {
#pragma omp critical(llmc_parallel_error)
      if (!error) error = std::current_exception();
    }
  }
#else
  try {
    fn(0, 1);
  } catch (...) {
    error = std::current_exception();
  }
#endif
  if (error) std::rethrow_exception(error);
}

/// The same on the stream's team.
template <class Fn>
void parallel_region(const Stream::Impl& stream, const Fn& fn) {
  parallel_region(stream.threads, fn);
}

/// Splits [0, count) into one contiguous range per thread and runs fn(begin, end) on each. What fn
/// computes for an index must not depend on where the ranges are cut. Work of at most `serial`
/// indices runs on the calling thread.
template <class Fn>
void parallel_for(const Stream::Impl& stream, std::int64_t count, const Fn& fn,
                  std::int64_t serial = 1) {
  if (count <= 0) return;
  if (count <= serial || stream.threads == 1) {
    fn(std::int64_t{0}, count);
    return;
  }
  parallel_region(stream, [&](int thread, int threads) {
    const std::int64_t begin = count * thread / threads;
    const std::int64_t end = count * (thread + 1) / threads;
    if (begin < end) fn(begin, end);
  });
}

/// Runs fn(item, thread) for every item of [0, count), each on whichever thread is free. What fn
/// computes for an item must not depend on the thread; `thread` names the workspace it may use.
template <class Fn>
void parallel_items(const Stream::Impl& stream, std::int64_t count, const Fn& fn) {
  if (count <= 1 || stream.threads == 1) {
    for (std::int64_t item = 0; item < count; ++item) fn(item, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  parallel_region(stream, [&](int thread, int) {
    for (;;) {
      const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= count) return;
      fn(item, thread);
    }
  });
}

}  // namespace llmc::cpu
