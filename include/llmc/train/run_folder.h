#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "llmc/data/tokenizer.h"
#include "llmc/io/model_loader.h"
#include "llmc/train/train_config.h"

namespace llmc {

/// Whether a folder holds what a run writes.
bool holds_run(const std::filesystem::path& folder);

/// Removes what a run writes, and nothing else.
void clear_run(const std::filesystem::path& folder);

/// Cuts the logs of a run back to a step and removes later checkpoints.
void cut_run(const std::filesystem::path& folder, std::int64_t step);

/// Writes config.toml and, where the folder has none and there is one, the tokenizer.
void describe_run(const std::filesystem::path& folder, const TrainConfig& config,
                  const Tokenizer* tokenizer);

/// Hash of the tokenizer that a model was trained with; empty if unknown.
std::string tokenizer_hash(const ModelLoader& model);

/// The tokenizer of a model: the one that `name` says (see load_tokenizer), else the model's own;
/// null if there is neither. Throws an input error if it is not the one the model was trained with,
/// or has more tokens than the model.
std::unique_ptr<Tokenizer> load_model_tokenizer(const ModelLoader& model,
                                                const std::string& name = {});

}  // namespace llmc
