#include "comm/nccl/stream_waits.h"

#include "core/cuda/driver.h"
#include "llmc/core/error.h"

namespace llmc {

StreamWaits::StreamWaits() : batch_(cuda::driver_function<Batch>("cuStreamBatchMemOp")) {}

void StreamWaits::add(const std::uint32_t* flag, std::uint32_t bits) {
  CUstreamBatchMemOpParams& operation = operations_.emplace_back();
  operation.waitValue = {};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.waitValue.value = bits;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
}

void StreamWaits::queue(cudaStream_t stream) {
  const CUresult status =
      batch_(stream, static_cast<unsigned>(operations_.size()), operations_.data(), 0);
  operations_.clear();
  if (status != CUDA_SUCCESS) {
    fail(ErrorKind::kDevice, "comm", "a wait of a stream for memory: CUDA error ",
         static_cast<int>(status));
  }
}

}  // namespace llmc
