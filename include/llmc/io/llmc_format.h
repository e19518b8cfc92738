#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "llmc/core/dtype.h"
#include "llmc/io/weight_source.h"
#include "llmc/nn/model_config.h"

namespace llmc {

// The model files of llm.c: a header of 256 int32, then 16 tensors, each over all layers, all fp32
// (version 3) or all bf16 (version 5). docs/formats.md has the tables.

/// Reads a model file. Header and file size are checked when it is opened; errors are input errors
/// that name the file. Rows of wte past the vocabulary are zero, whatever the file holds there.
class LlmcModelReader : public WeightSource {
 public:
  explicit LlmcModelReader(const std::filesystem::path& path);
  ~LlmcModelReader() override;
  LlmcModelReader(LlmcModelReader&&) noexcept;
  LlmcModelReader& operator=(LlmcModelReader&&) noexcept;

  /// Whether a file begins like an llm.c model, of whatever version.
  static bool recognises(const std::filesystem::path& path);

  const std::filesystem::path& path() const override;
  const ModelConfig& config() const override;
  DType dtype() const override;
  std::size_t weight_count() const override;
  StoredWeight weight(const std::string& name, DType wanted) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes a model file of version 3 (dtype f32) or 5 (bf16, rounded to nearest), whole or not at
/// all. Throws a config error for a model that the format cannot describe.
void write_llmc_model(const std::filesystem::path& path, WeightSource& source, DType dtype);

/// Content of llm.c's debug state (version 2): one batch and what its model makes of it, for tests.
struct LlmcDebugState {
  std::int64_t B = 0;
  std::int64_t T = 0;
  std::vector<std::int32_t> tokens;   ///< (B, T)
  std::vector<std::int32_t> targets;  ///< (B, T)
  std::vector<float> logits;          ///< (B, T, V), without padding columns
  float loss = 0.0f;
  std::map<std::string, std::vector<float>> gradients;  ///< by parameter name, in its shape
};

/// Reads the debug state of a model. Throws an input error for a file that is not one of `config`.
LlmcDebugState read_llmc_debug_state(const std::filesystem::path& path, const ModelConfig& config);

}  // namespace llmc
