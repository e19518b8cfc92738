#include "data/input_files.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

fs::path whole_path(const fs::path& path) {
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path, ignored), ignored);
  return ignored ? path : whole;
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

/// Every file of a folder and its subfolders, sorted.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const bool is_folder = entry->is_directory(error);
    if (is_hidden(entry->path())) {
      if (is_folder) entry.disable_recursion_pending();
    } else if (!is_folder) {
      files.push_back(entry->path());
    }
    error.clear();
  }
  if (error) {
    fail(ErrorKind::kIo, "prepare", "cannot list the folder ", folder.string(), ": ",
         error.message());
  }
  if (files.empty()) {
    fail(ErrorKind::kInput, "prepare", folder.string(),
         ": expected files in this folder, got none");
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool holds(const fs::path& folder, const fs::path& path) {
  const fs::path outer = whole_path(folder / "."), inner = whole_path(path);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

std::vector<fs::path> paths_of(const std::string& input, const PrepareOptions& options) {
  if (input == "-") return {input};
  std::error_code ignored;
  if (!fs::is_directory(input, ignored)) {
    // A special file matches no pattern; reading it says what it is.
    if (fs::exists(input, ignored)) return {input};
    return glob_files(input);
  }
  if (holds(input, options.out_dir)) {
    fail(ErrorKind::kInput, "prepare", options.out_dir.string(),
         ": expected an out_dir outside of the input folder ", input,
         ", got one whose files would be inputs the next time");
  }
  return files_in(input);
}

bool is_json_lines(const fs::path& path, InputFormat format) {
  if (format != InputFormat::kByName) return format == InputFormat::kJsonLines;
  const std::string name = path.filename().string();
  return name.ends_with(".jsonl") || name.ends_with(".jsonl.gz");
}

}  // namespace

std::vector<InputFile> list_inputs(const PrepareOptions& options) {
  std::vector<InputFile> files;
  std::set<fs::path> seen;
  for (const std::string& input : options.inputs) {
    for (fs::path& path : paths_of(input, options)) {
      InputFile file{std::move(path), false, 0};
      file.json_lines = is_json_lines(file.path, options.format);
      const fs::path key = file.is_standard_input() ? file.path : whole_path(file.path);
      if (!seen.insert(key).second) {
        fail(ErrorKind::kInput, "prepare", file.path.string(),
             ": expected each input once, got it twice");
      }
      if (!file.is_standard_input()) file.bytes = FileReader(file.path).size();
      files.push_back(std::move(file));
    }
  }
  return files;
}

}  // namespace llmc
