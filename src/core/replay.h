#pragma once

#include <functional>
#include <memory>

#include "llmc/core/device.h"

namespace llmc {

/// Work that is queued again and again with the same tensors and numbers. On a GPU, its second time
/// is recorded as a CUDA graph, and from then on one call launches all of its kernels, with less
/// time between them. The first time runs as it is: kernels are chosen and compiled then. The CPU
/// backend always runs it as it is.
class Replay {
 public:
  Replay();
  ~Replay();
  Replay(Replay&&) noexcept;
  Replay& operator=(Replay&&) noexcept;

  /// Queues `work`, which queues on `stream` only, and neither waits nor reads host memory that
  /// changes from one time to the next. Recorded anew where the Stream's settings have changed.
  void run(Stream& stream, const std::function<void()>& work);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
