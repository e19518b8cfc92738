#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "llmc/core/device.h"
#include "llmc/core/dtype.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/weight_source.h"
#include "llmc/nn/model_config.h"
#include "llmc/nn/parameters.h"

namespace llmc {

/// Opens whatever holds a model: a run folder (its newest checkpoint), a checkpoint folder, a
/// Hugging Face folder or an llm.c model file. First comes the config, to build a model from; then
/// the weights:
///
///     ModelLoader loader("runs/try");
///     Transformer model(device, loader.config(), options);
///     model.allocate();
///     loader.read_weights(model.stream(), model.parameters());
class ModelLoader {
 public:
  /// Throws an input error that says what was found where a model is expected.
  explicit ModelLoader(const std::filesystem::path& path);
  ~ModelLoader();
  ModelLoader(ModelLoader&&) noexcept;
  ModelLoader& operator=(ModelLoader&&) noexcept;

  /// The checkpoint folder or file that was opened.
  const std::filesystem::path& source() const;
  const ModelConfig& config() const;
  /// Of the stored weights; read_weights converts between f32 and bf16.
  DType dtype() const;
  /// What the checkpoint records; null for what is none.
  const CheckpointInfo* checkpoint() const;
  /// The run that the checkpoint belongs to.
  std::optional<std::filesystem::path> run_folder() const;
  /// Where the model's own tokenizer lies, if it has one: in its run or its Hugging Face folder.
  std::optional<std::filesystem::path> tokenizer_folder() const;

  /// Fills the values of every parameter; the table must be that of `config()`.
  void read_weights(Stream& stream, const ParameterSet& parameters);
  /// The weights one by one, for writers.
  WeightSource& weights();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
