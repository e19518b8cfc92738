#include "support/test_tensor.h"

#include <algorithm>
#include <limits>

#include "llmc/core/error.h"
#include "llmc/core/rng.h"

namespace llmc::testing {

TestTensor::TestTensor(Stream& stream, DType dtype, Shape shape)
    : stream_(&stream),
      buffer_(stream.device(), static_cast<std::size_t>(shape.numel()) * size_of(dtype)),
      tensor_(buffer_.data(), dtype, shape) {}

TestTensor::TestTensor(Stream& stream, DType dtype, Shape shape, const Values& values)
    : TestTensor(stream, dtype, shape) {
  set(values);
}

TestTensor TestTensor::random(Stream& stream, DType dtype, Shape shape, std::uint32_t seed,
                              double scale) {
  std::vector<float> draws(static_cast<std::size_t>(shape.numel()));
  Mt19937(seed).fill_normal(draws, 0.0f, static_cast<float>(scale));
  return {stream, dtype, shape, Values(draws.begin(), draws.end())};
}

TestTensor TestTensor::filled(Stream& stream, DType dtype, Shape shape, double value) {
  return {stream, dtype, shape, Values(static_cast<std::size_t>(shape.numel()), value)};
}

TestTensor TestTensor::nan(Stream& stream, DType dtype, Shape shape) {
  return filled(stream, dtype, shape, std::numeric_limits<double>::quiet_NaN());
}

TestTensor TestTensor::scratch(Stream& stream, std::int64_t bytes) {
  return filled(stream, DType::kU8, {bytes}, 0xff);
}

template <class T, class Convert>
static std::vector<T> converted(const Values& values, const Convert& convert) {
  std::vector<T> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), convert);
  return out;
}

void TestTensor::set(const Values& values) {
  if (static_cast<std::int64_t>(values.size()) != tensor_.numel()) {
    fail(ErrorKind::kInput, "test", "expected ", tensor_.numel(), " values, got ", values.size());
  }
  switch (tensor_.dtype()) {
    case DType::kF32:
      copy_from_host(*stream_, tensor_, converted<float>(values, [](double x) {
                                          return static_cast<float>(x);
                                        }).data());
      return;
    case DType::kBF16:
      copy_from_host(*stream_, tensor_, converted<bf16>(values, [](double x) {
                                          return to_bf16(static_cast<float>(x));
                                        }).data());
      return;
    case DType::kI32:
      copy_from_host(*stream_, tensor_, converted<std::int32_t>(values, [](double x) {
                                          return static_cast<std::int32_t>(x);
                                        }).data());
      return;
    case DType::kU8:
      copy_from_host(*stream_, tensor_, converted<std::uint8_t>(values, [](double x) {
                                          return static_cast<std::uint8_t>(x);
                                        }).data());
      return;
    case DType::kU16:
      fail(ErrorKind::kInput, "test", "no test uses u16");
  }
}

std::vector<std::uint8_t> TestTensor::bytes() const {
  std::vector<std::uint8_t> out(tensor_.bytes());
  copy_to_host(*stream_, out.data(), tensor_);
  return out;
}

Values TestTensor::values() const {
  Values out(static_cast<std::size_t>(tensor_.numel()));
  if (tensor_.dtype() == DType::kBF16) {
    std::vector<bf16> host(out.size());
    copy_to_host(*stream_, host.data(), tensor_);
    std::transform(host.begin(), host.end(), out.begin(), [](bf16 x) { return to_f32(x); });
  } else {
    std::vector<float> host(out.size());
    if (tensor_.dtype() != DType::kF32) fail(ErrorKind::kInput, "test", "expected f32 or bf16");
    copy_to_host(*stream_, host.data(), tensor_);
    std::copy(host.begin(), host.end(), out.begin());
  }
  return out;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> result;
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    try {
      Device::open({.threads = 1, .isa = isa});
      result.emplace_back(isa);
    } catch (const Error&) {  // this processor lacks it
    }
  }
  if (result.empty()) result.emplace_back("auto");
  return result;
}

Stream open_stream(const std::string& isa, int threads) {
  return Stream(Device::open({.threads = threads, .isa = isa}));
}

}  // namespace llmc::testing
