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

namespace {

template <class T, class Convert>
void write(Stream& stream, const Tensor& tensor, const Values& values, const Convert& convert) {
  std::vector<T> host(values.size());
  std::transform(values.begin(), values.end(), host.begin(), convert);
  copy_from_host(stream, tensor, host.data());
}

template <class T>
void write(Stream& stream, const Tensor& tensor, const Values& values) {
  write<T>(stream, tensor, values, [](double x) { return static_cast<T>(x); });
}

template <class T, class Convert>
Values read(Stream& stream, const Tensor& tensor, const Convert& convert) {
  std::vector<T> host(static_cast<std::size_t>(tensor.numel()));
  copy_to_host(stream, host.data(), tensor);
  Values out(host.size());
  std::transform(host.begin(), host.end(), out.begin(), convert);
  return out;
}

template <class T>
Values read(Stream& stream, const Tensor& tensor) {
  return read<T>(stream, tensor, [](T x) { return static_cast<double>(x); });
}

}  // namespace

void TestTensor::set(const Values& values) {
  if (static_cast<std::int64_t>(values.size()) != tensor_.numel()) {
    fail(ErrorKind::kInput, "test", "expected ", tensor_.numel(), " values, got ", values.size());
  }
  switch (tensor_.dtype()) {
    case DType::kF32:
      return write<float>(*stream_, tensor_, values);
    case DType::kBF16:
      return write<bf16>(*stream_, tensor_, values,
                         [](double x) { return to_bf16(static_cast<float>(x)); });
    case DType::kI32:
      return write<std::int32_t>(*stream_, tensor_, values);
    case DType::kU16:
      return write<std::uint16_t>(*stream_, tensor_, values);
    case DType::kU8:
      return write<std::uint8_t>(*stream_, tensor_, values);
  }
}

std::vector<std::uint8_t> TestTensor::bytes() const {
  std::vector<std::uint8_t> out(tensor_.bytes());
  copy_to_host(*stream_, out.data(), tensor_);
  return out;
}

Values TestTensor::values() const {
  switch (tensor_.dtype()) {
    case DType::kF32:
      return read<float>(*stream_, tensor_);
    case DType::kBF16:
      return read<bf16>(*stream_, tensor_, to_f32);
    case DType::kI32:
      return read<std::int32_t>(*stream_, tensor_);
    case DType::kU16:
      return read<std::uint16_t>(*stream_, tensor_);
    case DType::kU8:
      return read<std::uint8_t>(*stream_, tensor_);
  }
  return {};
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
