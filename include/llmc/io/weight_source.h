#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "llmc/core/device.h"
#include "llmc/core/dtype.h"
#include "llmc/core/shape.h"
#include "llmc/nn/model_config.h"
#include "llmc/nn/parameters.h"

namespace llmc {

/// Fills host memory with elements [begin, begin + count) of a tensor, as stored.
using ReadElements = std::function<void(std::int64_t begin, std::int64_t count, void* out)>;

/// One parameter of a source. `read` is to be called from front to back, in pieces of any size, and
/// up to the end: some sources check what they read there.
struct StoredWeight {
  DType dtype = DType::kF32;
  Shape
      shape;  ///< as in the parameter table: linear weights (out, in), padding rows of wte included
  ReadElements read;
};

/// Something that holds the weights of one model: a file, a folder, or a model in memory. Weights
/// are read one by one, so that none of the readers and writers of models needs a copy of it.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// The file or folder, for messages.
  virtual const std::filesystem::path& path() const = 0;
  virtual const ModelConfig& config() const = 0;
  /// Of the stored weights.
  virtual DType dtype() const = 0;
  virtual std::size_t weight_count() const = 0;
  /// The parameter of a name. `wanted` is the dtype that it will be used in: a source that stores
  /// it more than once gives the most exact one for that. Throws an input error where there is
  /// none.
  virtual StoredWeight weight(const std::string& name, DType wanted) = 0;

  /// Fills the values of every parameter; f32 and bf16 convert into each other, bf16 rounded to
  /// nearest. Throws an input error for another model's table.
  void read_weights(Stream& stream, const ParameterSet& parameters);
};

/// The weights of a model in memory. Everything must outlive it.
class ModelWeights : public WeightSource {
 public:
  ModelWeights(Stream& stream, const ModelConfig& config, const ParameterSet& parameters)
      : stream_(stream), config_(config), parameters_(parameters) {}

  const std::filesystem::path& path() const override { return path_; }
  const ModelConfig& config() const override { return config_; }
  DType dtype() const override { return parameters_.dtype(); }
  std::size_t weight_count() const override { return parameters_.table().size(); }
  StoredWeight weight(const std::string& name, DType wanted) override;

 private:
  Stream& stream_;
  const ModelConfig& config_;
  const ParameterSet& parameters_;
  std::filesystem::path path_ = "the model in memory";
};

}  // namespace llmc
