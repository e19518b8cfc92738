#pragma once

#include <string>

namespace llmc::testing {

/// The text as one member of a gzip file.
std::string gzip(const std::string& text);

}  // namespace llmc::testing
