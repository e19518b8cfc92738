#include "core/gpu_peaks.h"

#include <gtest/gtest.h>

namespace llmc {
namespace {

TEST(GpuPeaks, ByTheDriversName) {
  EXPECT_EQ(gpu_peaks("NVIDIA H200")->bf16, 989.4e12);
  EXPECT_EQ(gpu_peaks("NVIDIA H200")->tf32, 494.7e12);
  EXPECT_EQ(gpu_peaks("NVIDIA H100 80GB HBM3")->bf16, 989.4e12);
  EXPECT_EQ(gpu_peaks("NVIDIA H100 PCIe")->bf16, 756e12);
  EXPECT_EQ(gpu_peaks("NVIDIA A100-SXM4-80GB")->bf16, 312e12);
  EXPECT_EQ(gpu_peaks("NVIDIA GeForce RTX 4090")->fp32, 82.6e12);
  EXPECT_EQ(gpu_peaks("NVIDIA L4")->bf16, 121e12);
  EXPECT_EQ(gpu_peaks("Tesla V100-SXM2-16GB")->bf16, 0);
}

TEST(GpuPeaks, NothingForWhatItDoesNotKnow) {
  for (const char* name :
       {"", "NVIDIA L40", "NVIDIA A1000", "NVIDIA X9000", "CPU", "NVIDIA A100X"}) {
    EXPECT_FALSE(gpu_peaks(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace llmc
