#include "core/gpu_peaks.h"

namespace llmc {
namespace {

struct Row {
  std::string_view name;
  double bf16, tf32, fp32;  // TFLOP/s, dense
};

// NVIDIA's data sheets. The first row whose name is part of the driver's counts, so that variants
// stand before what they vary.
constexpr Row kRows[] = {
    {"GB200", 2500, 1250, 80},
    {"B200", 2250, 1125, 75},
    {"RTX 5090", 209.5, 104.8, 104.8},
    {"H200 NVL", 835, 417.5, 60},
    {"GH200", 989.4, 494.7, 66.9},
    {"H200", 989.4, 494.7, 66.9},
    {"H100 PCIe", 756, 378, 51.2},
    {"H100 NVL", 835, 417.5, 60},
    {"H100", 989.4, 494.7, 66.9},
    {"H800 PCIe", 756, 378, 51.2},
    {"H800", 989.4, 494.7, 66.9},
    {"H20", 148, 74, 44},
    {"L40S", 362, 183, 91.6},
    {"L4", 121, 60, 30.3},
    {"RTX 6000 Ada", 364.2, 182.1, 91.1},
    {"RTX 4090", 165.2, 82.6, 82.6},
    {"A100", 312, 156, 19.5},
    {"A800", 312, 156, 19.5},
    {"A40", 149.7, 74.8, 37.4},
    {"A30", 165, 82, 10.3},
    {"A10", 125, 62.5, 31.2},
    {"RTX A6000", 154.8, 77.4, 38.7},
    {"RTX 3090", 71, 35.6, 35.6},
    {"T4", 0, 0, 8.1},
    {"V100", 0, 0, 15.7},
};

/// Whether `name` holds `part` as whole words: "L4" is no part of "L40".
bool has_words(std::string_view name, std::string_view part) {
  const auto is_end = [](char c) { return c == ' ' || c == '-'; };
  for (auto at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1)) {
    const auto end = at + part.size();
    if ((at == 0 || is_end(name[at - 1])) && (end == name.size() || is_end(name[end]))) return true;
  }
  return false;
}

}  // namespace

std::optional<GpuPeaks> gpu_peaks(std::string_view name) {
  for (const Row& row : kRows) {
    if (has_words(name, row.name)) {
      return GpuPeaks{row.bf16 * 1e12, row.tf32 * 1e12, row.fp32 * 1e12};
    }
  }
  return std::nullopt;
}

}  // namespace llmc
