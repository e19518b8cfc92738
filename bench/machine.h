#pragma once

// What the machine gives: measured rates that everything else is compared with.

#include <cstddef>

#include "llmc/core/device.h"

namespace llmc::bench {

/// Floating-point operations a second of register-only multiply-adds on every thread of the stream,
/// with its instruction set, over about `seconds`.
double fma_rate(Stream& stream, double seconds = 0.01);

/// Copies between two buffers far larger than the caches.
class CopyProbe {
 public:
  CopyProbe(const Device& device, std::size_t bytes = std::size_t{256} << 20);
  /// Bytes read plus bytes written a second, of one copy by all threads of the stream.
  double rate(Stream& stream) const;

 private:
  Buffer from_, to_;
};

}  // namespace llmc::bench
