#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

namespace llmc {

/// Reads a file or the standard input from the first byte to the last. What is compressed with gzip
/// is inflated on the way, whatever the file is called; several members count as one text. Memory
/// does not grow with the size. All errors are of kind io or input and name the path: among them
/// truncated or damaged gzip, and formats that must be unpacked or converted first.
class InputStream {
 public:
  /// A regular file.
  explicit InputStream(std::filesystem::path path);
  /// Where nothing comes, `go_on` is asked ten times a second; false ends the input.
  static InputStream standard_input(std::function<bool()> go_on = {});
  ~InputStream();
  InputStream(InputStream&&) noexcept;
  InputStream& operator=(InputStream&&) noexcept;

  /// Reads at most `bytes` bytes; 0 at the end.
  std::size_t read_some(char* out, std::size_t bytes);
  /// Bytes of the file itself, compressed or not, that were taken so far.
  std::uint64_t consumed() const;

 private:
  struct Impl;
  explicit InputStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
