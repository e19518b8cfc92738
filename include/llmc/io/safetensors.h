#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/core/dtype.h"
#include "llmc/core/shape.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// Strings of a file's `__metadata__`.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// One tensor of a safetensors file, as its header describes it.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;          ///< as in the file: "F32", "BF16", "I64", …
  std::optional<DType> dtype;      ///< none for element types that a Tensor cannot have
  std::vector<std::int64_t> dims;  ///< any rank
  std::uint64_t offset = 0;        ///< of the first byte, from the start of the file
  std::uint64_t bytes = 0;

  std::int64_t numel() const;
  /// Throws an input error where the rank is over Shape::kMaxRank.
  Shape shape() const;
};

/// Reads safetensors files (https://github.com/huggingface/safetensors). The header is checked in
/// full when the file is opened: its length, every dtype, shape and offset, no holes, no overlaps,
/// and that the data end where the file does. Data are read on demand. All errors are input errors
/// that name the file.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  const std::filesystem::path& path() const;
  /// In order of their offsets.
  const std::vector<SafetensorsEntry>& entries() const;
  const SafetensorsMetadata& metadata() const;
  /// Null if there is no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  /// Throws if there is no such tensor.
  const SafetensorsEntry& at(std::string_view name) const;
  /// Checksum (checksum64) of the file's first bytes, up to the data.
  std::uint64_t header_checksum() const;

  /// Reads elements [begin, begin + count) of a tensor, as stored, to host memory.
  void read(const SafetensorsEntry& entry, std::int64_t begin, std::int64_t count, void* out);
  /// Reads a whole tensor into one of the same dtype and shape.
  void read(Stream& stream, const Tensor& dst, std::string_view name);
  /// A whole tensor of dtype T.
  template <class T>
  std::vector<T> values(std::string_view name) {
    const SafetensorsEntry& entry = at(name);
    check_dtype(entry, DTypeOf<T>::value);
    std::vector<T> out(static_cast<std::size_t>(entry.numel()));
    read(entry, 0, entry.numel(), out.data());
    return out;
  }

 private:
  void check_dtype(const SafetensorsEntry& entry, DType expected) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A tensor that a SafetensorsWriter will write.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

/// Writes a safetensors file that appears whole or not at all. The header is written first, padded
/// to 8 bytes, with `"format": "pt"` among its metadata; wider elements come first in the file, so
/// that every tensor is aligned. Data follow in pieces, tensors in any order.
class SafetensorsWriter {
 public:
  /// Throws an input error for a name used twice or reserved.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                    const SafetensorsMetadata& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;

  /// In file order.
  const std::vector<SafetensorsEntry>& entries() const;
  std::uint64_t header_checksum() const;
  /// Size of the finished file.
  std::uint64_t file_bytes() const;

  /// The next bytes of a tensor, from host memory. Throws past its end.
  void write(std::string_view name, const void* data, std::size_t bytes);
  /// Bytes of a tensor from `offset` on, for data that do not come in order; each byte once, and
  /// not beside `write`.
  void write_at(std::string_view name, std::uint64_t offset, const void* data, std::size_t bytes);
  /// A whole tensor, copied from its device.
  void write(Stream& stream, std::string_view name, const Tensor& src);
  /// Throws an input error where a tensor is incomplete; else the file takes its name.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
