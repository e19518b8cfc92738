#include "bench/fma_loop.h"

#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {
namespace {

double run_fma_loop(std::int64_t iterations) {
  constexpr int kSums = 12;  // more than latency × throughput of any multiply-add unit so far
  VecF sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = splat(static_cast<float>(i));
  VecF factor = splat(0.999f), term = splat(0.001f);
  asm volatile("" : "+x"(factor), "+x"(term));  // values the compiler knows nothing about
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * factor + term;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) asm volatile("" : : "x"(sums[i]));
  return static_cast<double>(iterations) * kSums * kWidth * 2;
}

}  // namespace

extern const FmaLoop kFmaLoop;
const FmaLoop kFmaLoop = run_fma_loop;

}  // namespace llmc::cpu::LLMC_ISA
