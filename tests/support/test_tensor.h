#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc::testing {

/// Element values of a tensor on the host. Every element is exact in a double.
using Values = std::vector<double>;

/// A tensor that owns its device memory. Its elements are reached by copies only, so that a test
/// runs on any backend. The Stream must outlive it.
class TestTensor {
 public:
  /// Zeros.
  TestTensor(Stream& stream, DType dtype, Shape shape);
  /// The values, rounded to the dtype.
  TestTensor(Stream& stream, DType dtype, Shape shape, const Values& values);
  /// Normal draws times `scale`, rounded to the dtype.
  static TestTensor random(Stream& stream, DType dtype, Shape shape, std::uint32_t seed,
                           double scale = 1.0);
  /// The same value everywhere.
  static TestTensor filled(Stream& stream, DType dtype, Shape shape, double value);
  /// NaN everywhere: what an op that overwrites must not read.
  static TestTensor nan(Stream& stream, DType dtype, Shape shape);
  /// `bytes` bytes of 0xff, for scratch.
  static TestTensor scratch(Stream& stream, std::int64_t bytes);

  operator const Tensor&() const { return tensor_; }  // NOLINT: stands for its tensor
  const Tensor* operator->() const { return &tensor_; }

  Values values() const;
  std::vector<std::uint8_t> bytes() const;

 private:
  void set(const Values& values);

  Stream* stream_;
  Buffer buffer_;
  Tensor tensor_;
};

/// A trivially copyable struct in device memory.
template <class T>
class TestStruct {
 public:
  explicit TestStruct(Stream& stream, const T& value = {})
      : stream_(&stream), buffer_(stream.device(), sizeof(T)) {
    set(value);
  }
  T* device() const { return static_cast<T*>(buffer_.data()); }
  void set(const T& value) { copy_from_host(*stream_, bytes(), &value); }
  T get() const {
    T value;
    copy_to_host(*stream_, &value, bytes());
    return value;
  }

 private:
  Tensor bytes() const {
    return {buffer_.data(), DType::kU8, {static_cast<std::int64_t>(sizeof(T))}};
  }
  Stream* stream_;
  Buffer buffer_;
};

/// The instruction sets that this machine can run ("auto" alone on a backend without them).
std::vector<std::string> available_isas();

/// A stream of its own device.
Stream open_stream(const std::string& isa = "auto", int threads = 2);

}  // namespace llmc::testing
