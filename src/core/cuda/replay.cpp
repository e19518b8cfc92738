#include "core/replay.h"

#include "core/cuda/device_impl.h"

namespace llmc {
namespace {

using cuda::check;
using cuda::is_capturing;

/// What `work` queues, recorded instead of run.
cudaGraph_t record(cudaStream_t stream, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "start of a recording");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "end of a recording");
  return graph;
}

}  // namespace

struct Replay::Impl {
  int settings = -1;  ///< those of the stream when the work was run or recorded
  cudaGraphExec_t recorded = nullptr;
  int ordinal = 0;

  ~Impl() { forget(); }
  void forget() {
    if (recorded == nullptr) return;
    const cuda::CurrentDevice current(ordinal);
    cudaGraphExecDestroy(recorded);
    recorded = nullptr;
  }
};

Replay::Replay() : impl_(std::make_unique<Impl>()) {}
Replay::~Replay() = default;
Replay::Replay(Replay&&) noexcept = default;
Replay& Replay::operator=(Replay&&) noexcept = default;

void Replay::run(Stream& stream, const std::function<void()>& work) {
  Stream::Impl& on = stream.impl();
  const cuda::CurrentDevice current(on.ordinal());
  // The legacy default stream cannot be recorded, and a caller may be recording already.
  if (on.stream == cudaStreamLegacy || is_capturing(on.stream)) return work();
  if (impl_->settings != on.settings) {
    impl_->forget();
    work();
    impl_->settings = on.settings;
    return;
  }
  if (impl_->recorded == nullptr) {
    impl_->ordinal = on.ordinal();
    const cudaGraph_t graph = record(on.stream, work);
    const cudaError_t status = cudaGraphInstantiate(&impl_->recorded, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "making a graph of recorded work");
  }
  check(cudaGraphLaunch(impl_->recorded, on.stream), "recorded work");
}

}  // namespace llmc
