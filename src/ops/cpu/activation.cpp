#include "llmc/ops/activation.h"

#include <algorithm>

#include "core/cpu/parallel.h"
#include "ops/check.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/elementwise_kernels.h"

namespace llmc {
namespace {

/// Elements below which a second thread costs more than it saves.
constexpr std::int64_t kSerial = 4096;

}  // namespace

void gelu_forward(Stream& stream, const Tensor& out, const Tensor& in) {
  cpu::with_float_type("gelu_forward", "in", in, [&]<class T>(std::type_identity<T>) {
    expect_count("gelu_forward", "out", out, in.dtype(), in.numel());
    const auto& kernels = cpu::elementwise_kernels<T>(stream.impl().isa);
    cpu::parallel_for(
        stream.impl(), in.numel(),
        [&](std::int64_t begin, std::int64_t end) {
          kernels.gelu_forward(out.data<T>() + begin, in.data<T>() + begin, end - begin);
        },
        kSerial);
  });
}

void gelu_backward(Stream& stream, const Tensor& din, const Tensor& dout, const Tensor& in) {
  cpu::with_float_type("gelu_backward", "in", in, [&]<class T>(std::type_identity<T>) {
    expect_count("gelu_backward", "din", din, in.dtype(), in.numel());
    expect_count("gelu_backward", "dout", dout, in.dtype(), in.numel());
    const auto& kernels = cpu::elementwise_kernels<T>(stream.impl().isa);
    cpu::parallel_for(
        stream.impl(), in.numel(),
        [&](std::int64_t begin, std::int64_t end) {
          kernels.gelu_backward(din.data<T>() + begin, dout.data<T>() + begin, in.data<T>() + begin,
                                end - begin);
        },
        kSerial);
  });
}

void add(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b) {
  cpu::with_float_type("add", "a", a, [&]<class T>(std::type_identity<T>) {
    expect_count("add", "b", b, a.dtype(), a.numel());
    expect_count("add", "out", out, a.dtype(), a.numel());
    const auto& kernels = cpu::elementwise_kernels<T>(stream.impl().isa);
    cpu::parallel_for(
        stream.impl(), a.numel(),
        [&](std::int64_t begin, std::int64_t end) {
          kernels.add(out.data<T>() + begin, a.data<T>() + begin, b.data<T>() + begin, end - begin);
        },
        kSerial);
  });
}

void convert(Stream& stream, const Tensor& out, const Tensor& in) {
  expect_float("convert", "out", out);
  cpu::with_float_type("convert", "in", in, [&]<class T>(std::type_identity<T>) {
    expect_count("convert", "out", out, out.dtype(), in.numel());
    const cpu::Isa isa = stream.impl().isa;
    cpu::parallel_for(
        stream.impl(), in.numel(),
        [&](std::int64_t begin, std::int64_t end) {
          const std::int64_t n = end - begin;
          if (out.dtype() == in.dtype()) {
            std::copy_n(in.data<T>() + begin, n, out.data<T>() + begin);
          } else if (in.dtype() == DType::kBF16) {
            cpu::elementwise_kernels<bf16>(isa).widen(out.data<float>() + begin,
                                                      in.data<bf16>() + begin, n);
          } else {
            cpu::elementwise_kernels<bf16>(isa).narrow(out.data<bf16>() + begin,
                                                       in.data<float>() + begin, n);
          }
        },
        kSerial);
  });
}

}  // namespace llmc
