#pragma once

#include <cstdint>

#include "core/cpu/device_impl.h"
#include "ops/cpu/kernels/gemm_kernels.h"

namespace llmc::cpu {

/// out = epilogue(alpha · a·b + beta · c + bias) for c: (m, n), summed over k, and out.row_sums.
/// Each element is summed in an order that depends on m, n, k and the instruction set only.
void gemm(const Stream::Impl& stream, const GemmOutput& out, const GemmOperand& a,
          const GemmOperand& b, std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace llmc::cpu
