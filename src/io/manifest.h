#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/dtype.h"
#include "llmc/core/shape.h"
#include "llmc/io/checkpoint.h"

namespace llmc {

inline constexpr std::string_view kManifestName = "manifest.json";

/// A file of a checkpoint: a safetensors file.
struct ManifestFile {
  std::uint64_t bytes = 0;
  std::uint64_t header_checksum = 0;
};

/// Elements [begin, end) of a tensor, flat, stored in `file` as the tensor of the same name.
struct ManifestPiece {
  std::string file;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t checksum = 0;  ///< checksum64 of the stored bytes
};

/// A full-shape tensor and the pieces that it lies in, by `begin`, without gaps.
struct ManifestTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<ManifestPiece> pieces;
};

/// All that manifest.json says.
struct Manifest {
  CheckpointInfo info;
  std::map<std::string, ManifestFile> files;
  std::map<std::string, ManifestTensor> weights;  ///< by parameter name
  std::map<std::string, ManifestTensor> state;    ///< by "<state>.<parameter>"
};

/// The manifest as JSON, with a checksum of itself.
std::string to_json(const Manifest& manifest);

/// The files and the state of one rank, for the rank that writes the manifest.
std::string part_to_json(const Manifest& part);
/// Adds what another rank has written.
void add_part(Manifest& manifest, const std::string& text, const std::filesystem::path& path);
/// Puts pieces in order; an input error that names the first state tensor with a gap.
void check_state_whole(Manifest& manifest, const std::filesystem::path& path);

/// Parses and checks; every error is an input error that names `path`.
Manifest manifest_from_json(const std::string& text, const std::filesystem::path& path);

}  // namespace llmc
