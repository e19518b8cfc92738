#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "llmc/data/prepare.h"

namespace llmc {

/// One text to read.
struct InputFile {
  std::filesystem::path path;  ///< "-": the standard input
  bool json_lines = false;
  std::uint64_t bytes = 0;  ///< of the file as it lies there; 0 for the standard input

  bool is_standard_input() const { return path == "-"; }
};

/// What PrepareOptions::inputs name, in order. An input error names what is missing, no regular
/// file, given twice, or a folder that holds out_dir, whose files would become inputs.
std::vector<InputFile> list_inputs(const PrepareOptions& options);

}  // namespace llmc
