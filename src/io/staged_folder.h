#pragma once

#include <filesystem>
#include <memory>

#include "llmc/core/file.h"

namespace llmc {

/// A folder that appears whole or not at all: it is filled under a temporary name beside the target
/// and renamed at the end. Destroyed without `publish`, it leaves nothing.
class StagedFolder {
 public:
  /// Throws an input error where the target exists, unless it is an empty folder, and an io error
  /// where another writer is about to make it.
  explicit StagedFolder(std::filesystem::path target);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  /// Where to write the content.
  const std::filesystem::path& path() const { return staging_; }
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path staging_;
  std::unique_ptr<FolderLock> lock_;
};

}  // namespace llmc
