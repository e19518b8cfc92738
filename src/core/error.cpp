#include "llmc/core/error.h"

namespace llmc {

Error::Error(ErrorKind kind, std::string_view module, std::string_view message)
    : std::runtime_error(concat("[", module, "] ", message)), kind_(kind) {}

ErrorKind kind_of(const std::exception& error) noexcept {
  const auto* const own = dynamic_cast<const Error*>(&error);
  return own != nullptr ? own->kind() : ErrorKind::kIo;
}

}  // namespace llmc
