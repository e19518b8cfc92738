#pragma once

#include <optional>
#include <string_view>

namespace llmc {

/// What a GPU's matrix units do at most with dense operands, FLOP/s, as its maker states it.
struct GpuPeaks {
  double bf16;  ///< accumulated in fp32; 0: it has none
  double tf32;  ///< 0: it has none
  double fp32;
};

/// By the name the driver gives, for example "NVIDIA H200". Nothing for a GPU that is not in the
/// table: no figure is better than a guess.
std::optional<GpuPeaks> gpu_peaks(std::string_view name);

}  // namespace llmc
