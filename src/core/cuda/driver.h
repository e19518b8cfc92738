#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "core/cuda/device_impl.h"
#include "llmc/core/error.h"

namespace llmc::cuda {

/// A function of the driver by its name, as CUDA 12.0 had it; the library is not linked with the
/// driver. Throws a device error where there is none.
template <class Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), name);
  if (result != cudaDriverEntryPointSuccess) {
    fail(ErrorKind::kDevice, "cuda", "expected a driver with ", name, ", got none");
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace llmc::cuda
