#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/core/dtype.h"

namespace llmc {

/// The most ranks whose parts are added at once.
inline constexpr int kMostParts = 16;

struct Parts {
  const void* at[kMostParts];
};

/// out[i] = parts[0][i] + parts[1][i] + …, added in fp32 in that order and rounded once, as
/// sum_in_order does on the CPU. out may be one of the parts. f32 or bf16.
void sum_parts(cudaStream_t stream, void* out, const Parts& parts, int count, std::int64_t elements,
               DType dtype);

}  // namespace llmc
