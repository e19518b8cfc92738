#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

// Names inside a run folder. A name that begins with a dot is never a checkpoint: what a crash
// leaves under it is removed by the next writer.
inline constexpr std::string_view kWeightsFile = "model.safetensors";
inline constexpr std::string_view kStateFile = "optimizer.safetensors";

/// run/checkpoints.
std::filesystem::path checkpoints_folder(const std::filesystem::path& run);
/// Where a step's checkpoint is put together: run/checkpoints/.new_step_00001000.
std::filesystem::path unfinished_folder(const std::filesystem::path& run, std::int64_t step);

/// What to do about a damaged checkpoint: names the newest one before it, if there is one.
std::string advice_on_damage(const std::filesystem::path& checkpoint);

/// What is named as a checkpoint of a later step beside this one but is none, oldest step first: as
/// text for people, with the reason.
std::vector<std::string> passed_over_after(const std::filesystem::path& checkpoint);

/// Removes what writers that were interrupted left behind.
void remove_leftovers(const std::filesystem::path& run);
/// Moves a finished folder to its step's name, in place of one that is there.
void publish_checkpoint(const std::filesystem::path& run, std::int64_t step);
/// Removes a checkpoint so that an interruption leaves it whole or no checkpoint.
void remove_checkpoint(const std::filesystem::path& folder);
/// Removes all but the newest `keep` checkpoints, the best one and that of `step`. keep = 0: none.
void prune_checkpoints(const std::filesystem::path& run, std::int64_t keep, std::int64_t step);
/// Names the checkpoint of `step` the best one if its loss is the lowest so far.
void update_best(const std::filesystem::path& run, std::int64_t step, double val_loss);

}  // namespace llmc
