// Runs one op of the library and checks its result.

#include <cmath>
#include <cstdio>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/ops/activation.h"

int main() {
  const llmc::Device device = llmc::Device::open();
  llmc::Stream stream(device);
  const std::vector<float> x = {-2.0f, -0.5f, 0.0f, 1.0f, 3.0f};
  const llmc::Buffer memory(device, x.size() * sizeof(float));
  const llmc::Tensor tensor(memory.data(), llmc::DType::kF32, {5});
  llmc::copy_from_host(stream, tensor, x.data());
  llmc::gelu_forward(stream, tensor, tensor);

  std::vector<float> y(x.size());
  llmc::copy_to_host(stream, y.data(), tensor);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float inner = 0.79788456f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
    const float expected = 0.5f * x[i] * (1.0f + std::tanh(inner));
    std::printf("gelu(%g) = %g\n", x[i], y[i]);
    if (std::abs(y[i] - expected) > 1e-5f) return 1;
  }
}
