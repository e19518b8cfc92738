#pragma once

#include <cstdint>

#include "core/cpu/isa.h"

namespace llmc::cpu {

/// Runs `iterations` rounds of independent multiply-adds on registers only and returns how many
/// floating-point operations that was.
using FmaLoop = double (*)(std::int64_t iterations);

namespace portable {
extern const FmaLoop kFmaLoop;
}
#if defined(__x86_64__)
namespace avx2 {
extern const FmaLoop kFmaLoop;
}
namespace avx512 {
extern const FmaLoop kFmaLoop;
}
#endif

inline FmaLoop fma_loop(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::kFmaLoop;
  if (isa == Isa::kAvx2) return avx2::kFmaLoop;
#endif
  (void)isa;
  return portable::kFmaLoop;
}

}  // namespace llmc::cpu
