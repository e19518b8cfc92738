#include "io/checkpoint_folder.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "io/manifest.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/io/checkpoint.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kUnfinished = ".new_";
constexpr std::string_view kDiscarded = ".old_";
constexpr std::string_view kBestName = "best.json";
constexpr std::size_t kDigits = 8;

std::string name_of_step(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return concat(kPrefix, digits);
}

/// The step of a folder's name; none for any other name.
std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  for (const char c : name.substr(kPrefix.size())) {
    if (c < '0' || c > '9' || step > INT64_MAX / 10 - 1) return std::nullopt;
    step = step * 10 + (c - '0');
  }
  if (name != name_of_step(step)) return std::nullopt;
  return step;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    fail(ErrorKind::kIo, "checkpoint", "cannot remove ", path.string(), ": ", error.message());
  }
}

/// What a folder holds; nothing if it does not exist.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    paths.push_back(it->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorKind::kIo, "checkpoint", "cannot list ", folder.string(), ": ", error.message());
  }
  return paths;
}

}  // namespace

fs::path checkpoints_folder(const fs::path& run) {
  return run / "checkpoints";
}

fs::path checkpoint_folder(const fs::path& run, std::int64_t step) {
  return checkpoints_folder(run) / name_of_step(step);
}

fs::path unfinished_folder(const fs::path& run, std::int64_t step) {
  return checkpoints_folder(run) / concat(kUnfinished, name_of_step(step));
}

std::string advice_on_damage(const fs::path& checkpoint) {
  std::string advice = "; the file is damaged, use another checkpoint";
  const std::vector<fs::path> folders = list_checkpoints(checkpoint.parent_path().parent_path());
  const auto at = std::find_if(folders.rbegin(), folders.rend(), [&](const fs::path& folder) {
    return folder.filename() < checkpoint.filename();
  });
  return at == folders.rend() ? advice : concat(advice, ", such as ", at->string());
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<fs::path> folders;
  for (const fs::path& path : entries_of(checkpoints_folder(run))) {
    std::error_code ignored;
    if (step_of(path) && fs::is_regular_file(path / kManifestName, ignored)) {
      folders.push_back(path);
    }
  }
  std::sort(folders.begin(), folders.end(),
            [](const fs::path& a, const fs::path& b) { return *step_of(a) < *step_of(b); });
  return folders;
}

std::optional<fs::path> latest_checkpoint(const fs::path& run) {
  const std::vector<fs::path> folders = list_checkpoints(run);
  if (folders.empty()) return std::nullopt;
  return folders.back();
}

std::vector<std::string> passed_over_after(const fs::path& checkpoint) {
  std::map<std::int64_t, std::string> others;
  for (const fs::path& path : entries_of(checkpoint.parent_path())) {
    std::error_code ignored;
    const auto step = step_of(path);
    if (!step || step <= step_of(checkpoint)) continue;
    if (fs::is_regular_file(path / kManifestName, ignored)) continue;
    others[*step] = concat(path.string(), fs::is_directory(path, ignored)
                                              ? concat(" (has no ", kManifestName, ")")
                                              : std::string(" (is no folder)"));
  }
  std::vector<std::string> texts;
  for (auto& [step, text] : others) texts.push_back(std::move(text));
  return texts;
}

std::optional<BestCheckpoint> best_checkpoint(const fs::path& run) {
  const fs::path path = checkpoints_folder(run) / kBestName;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  constexpr std::uint64_t kLimit = 4096;
  const json value = json::parse(read_text(path, kLimit), nullptr, false);
  const bool whole = value.is_object() && value.contains("step") && value.contains("val_loss") &&
                     value["step"].is_number_unsigned() && value["val_loss"].is_number();
  if (!whole) {
    fail(ErrorKind::kInput, "checkpoint", path.string(),
         ": expected an object with step and val_loss; remove the file to begin anew");
  }
  BestCheckpoint best{value["step"].get<std::int64_t>(), value["val_loss"].get<double>(), {}};
  best.folder = checkpoint_folder(run, best.step);
  if (!fs::is_regular_file(best.folder / kManifestName, ignored)) return std::nullopt;
  return best;
}

void update_best(const fs::path& run, std::int64_t step, double val_loss) {
  const std::optional<BestCheckpoint> best = best_checkpoint(run);
  if (best && best->step != step && best->val_loss <= val_loss) return;
  const json value{{"step", step},
                   {"val_loss", val_loss},
                   {"checkpoint", checkpoint_folder(run, step).filename().string()}};
  write_text(checkpoints_folder(run) / kBestName, value.dump() + "\n");
}

void remove_leftovers(const fs::path& run) {
  for (const fs::path& path : entries_of(checkpoints_folder(run))) {
    const std::string name = path.filename().string();
    if (name.starts_with(kUnfinished) || name.starts_with(kDiscarded)) remove_tree(path);
  }
}

void remove_checkpoint(const fs::path& folder) {
  const fs::path discarded = folder.parent_path() / concat(kDiscarded, folder.filename().string());
  remove_tree(discarded);
  rename_durably(folder, discarded);
  remove_tree(discarded);
}

void publish_checkpoint(const fs::path& run, std::int64_t step) {
  const fs::path unfinished = unfinished_folder(run, step);
  const fs::path target = checkpoint_folder(run, step);
  sync_folder(unfinished);
  std::error_code ignored;
  if (!fs::exists(target, ignored)) {
    rename_durably(unfinished, target);
    return;
  }
  exchange_durably(unfinished, target);
  remove_tree(unfinished);
}

void prune_checkpoints(const fs::path& run, std::int64_t keep, std::int64_t step) {
  if (keep == 0) return;
  const std::optional<BestCheckpoint> best = best_checkpoint(run);
  const std::vector<fs::path> folders = list_checkpoints(run);
  const auto excess = static_cast<std::int64_t>(folders.size()) - keep;
  for (std::int64_t i = 0; i < excess; ++i) {
    const fs::path& folder = folders[static_cast<std::size_t>(i)];
    const bool keeps = step_of(folder) == step || (best && best->folder == folder);
    if (!keeps) remove_checkpoint(folder);
  }
}

void remove_checkpoints_after(const fs::path& run, std::int64_t step) {
  const std::vector<fs::path> folders = list_checkpoints(run);
  for (auto it = folders.rbegin(); it != folders.rend() && *step_of(*it) > step; ++it) {
    remove_checkpoint(*it);
  }
}

}  // namespace llmc
