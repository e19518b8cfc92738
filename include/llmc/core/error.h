#pragma once

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace llmc {

/// What went wrong, so that a caller can react by kind and an app can choose its exit status.
enum class ErrorKind {
  kConfig,  ///< an option or a combination of options cannot be used
  kInput,   ///< a file's content or a caller's argument is not what it should be
  kMemory,  ///< it does not fit
  kDevice,  ///< the compute device failed
  kComm,    ///< communication between processes failed
  kIo,      ///< the operating system refused to read or write
};

/// The only exception the library throws. `what()` is one sentence:
/// "[module] what: expected …, got …; hint".
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view module, std::string_view message);
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// The kind of an Error; kIo for what others throw, such as std::filesystem.
ErrorKind kind_of(const std::exception& error) noexcept;

/// Joins the parts as `operator<<` prints them.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

/// Throws an Error whose message is the parts joined.
template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, std::string_view module, const Parts&... parts) {
  throw Error(kind, module, concat(parts...));
}

}  // namespace llmc
