#include "llmc/core/error.h"

namespace llmc {

Error::Error(ErrorKind kind, std::string_view module, std::string_view message)
    : std::runtime_error(concat("[", module, "] ", message)), kind_(kind) {}

}  // namespace llmc
