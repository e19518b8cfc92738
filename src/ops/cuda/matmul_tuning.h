#pragma once

#include <cstddef>
#include <vector>

#include "ops/cuda/matmul_plan.h"

namespace llmc::cuda {

struct TimedAlgorithm {
  std::size_t index = 0;    ///< among the candidates
  double microseconds = 0;  ///< 0: nothing was timed
};

/// Runs a product by each of the candidates, which are in the order of the library's own
/// preference, and says which is the fastest. The results go to memory of its own, so product.c
/// keeps what it holds; without enough memory, and in a stream that is being captured, nothing is
/// timed and the first is said. Waits for the GPU.
TimedAlgorithm fastest_algorithm(cublasLtHandle_t handle, const MatmulPlan& plan,
                                 const std::vector<cublasLtMatmulAlgo_t>& candidates,
                                 Stream::Impl& stream, const Product& product);

}  // namespace llmc::cuda
