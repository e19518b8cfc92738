#include "ops/cpu/kernels/elementwise_kernels.h"

#include "ops/cpu/kernels/gelu.h"
#include "ops/cpu/kernels/simd.h"

namespace llmc::cpu::LLMC_ISA {
namespace {

template <class T>
void gelu_forward(T* out, const T* in, std::int64_t n) {
  for_vectors(
      n, [&](std::int64_t i, auto lanes) { store(out + i, gelu(load(in + i, lanes)), lanes); });
}

template <class T>
void gelu_backward(T* din, const T* dout, const T* in, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    store(din + i, load(dout + i, lanes) * gelu_gradient(load(in + i, lanes)), lanes);
  });
}

template <class T>
void add(T* out, const T* a, const T* b, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    store(out + i, load(a + i, lanes) + load(b + i, lanes), lanes);
  });
}

template <class T>
void accumulate(float* sum, const T* in, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    store(sum + i, load(sum + i, lanes) + load(in + i, lanes), lanes);
  });
}

template <class To, class From>
void convert(To* out, const From* in, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) { store(out + i, load(in + i, lanes), lanes); });
}

}  // namespace

template <class T>
const ElementwiseKernels<T>& elementwise_kernels() {
  static constexpr ElementwiseKernels<T> kTable = {
      gelu_forward<T>, gelu_backward<T>,  add<T>,
      accumulate<T>,   convert<float, T>, convert<T, float>};
  return kTable;
}
template const ElementwiseKernels<float>& elementwise_kernels();
template const ElementwiseKernels<bf16>& elementwise_kernels();

}  // namespace llmc::cpu::LLMC_ISA
