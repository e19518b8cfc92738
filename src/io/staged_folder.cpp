#include "io/staged_folder.h"

#include <system_error>
#include <utility>

#include "llmc/core/error.h"

namespace llmc {

namespace fs = std::filesystem;

StagedFolder::StagedFolder(fs::path target) : target_(fs::absolute(target).lexically_normal()) {
  if (!target_.has_filename()) target_ = target_.parent_path();
  std::error_code ignored;
  const auto type = fs::symlink_status(target_, ignored).type();
  // Where nothing can be seen (none), making the folder will say why.
  const bool is_free = type == fs::file_type::not_found || type == fs::file_type::none ||
                       (fs::is_directory(target_, ignored) && fs::is_empty(target_, ignored));
  if (!is_free) {
    fail(ErrorKind::kInput, "model_writer", "cannot write ", target.string(),
         ": expected a new folder, got one that exists; remove it or give another name");
  }
  const fs::path staging = target_.parent_path() / concat(".", target_.filename().string(), ".new");
  make_folders(staging);
  lock_ = std::make_unique<FolderLock>(staging);
  staging_ = staging;
  for (const auto& left_by_a_crash : fs::directory_iterator(staging_)) {
    fs::remove_all(left_by_a_crash.path());
  }
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

void StagedFolder::publish() {
  sync_folder(staging_);
  rename_durably(staging_, target_);
  staging_.clear();
}

}  // namespace llmc
