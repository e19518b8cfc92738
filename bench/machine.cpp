#include "bench/machine.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/fma_loop.h"
#include "bench/timing.h"
#include "core/cpu/parallel.h"

namespace llmc::bench {

double fma_rate(Stream& stream, double seconds) {
  const cpu::FmaLoop loop = cpu::fma_loop(stream.impl().isa);
  constexpr std::int64_t kProbe = 20000;
  const double start = now();
  loop(kProbe);
  const double probe = std::max(now() - start, 1e-7);
  const auto iterations = static_cast<std::int64_t>(kProbe * seconds / probe) + 1;
  std::vector<double> flops(static_cast<std::size_t>(stream.impl().threads), 0.0);
  const double begin = now();
  cpu::parallel_region(stream.impl(), [&](int thread, int) {
    flops[static_cast<std::size_t>(thread)] = loop(iterations);
  });
  const double elapsed = now() - begin;
  double total = 0;
  for (const double f : flops) total += f;
  return total / elapsed;
}

CopyProbe::CopyProbe(const Device& device, std::size_t bytes)
    : from_(device, bytes), to_(device, bytes) {}

double CopyProbe::rate(Stream& stream) const {
  const double start = now();
  cpu::parallel_for(stream.impl(), static_cast<std::int64_t>(from_.bytes()),
                    [&](std::int64_t begin, std::int64_t end) {
                      std::memcpy(static_cast<std::byte*>(to_.data()) + begin,
                                  static_cast<const std::byte*>(from_.data()) + begin,
                                  static_cast<std::size_t>(end - begin));
                    });
  return 2.0 * static_cast<double>(from_.bytes()) / (now() - start);
}

}  // namespace llmc::bench
