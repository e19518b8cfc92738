#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "llmc/core/dtype.h"
#include "llmc/data/tokenizer.h"
#include "llmc/io/weight_source.h"
#include "llmc/nn/model_config.h"

namespace llmc {

// GPT-2 folders of Hugging Face: config.json, and model.safetensors or several files of tensors
// with an index. docs/formats.md describes them.

/// Reads such a folder. Config, index, and the name, type and shape of every tensor are checked
/// when it is opened; errors are input errors that name the file.
class HfModelReader : public WeightSource {
 public:
  explicit HfModelReader(const std::filesystem::path& folder);
  ~HfModelReader() override;
  HfModelReader(HfModelReader&&) noexcept;
  HfModelReader& operator=(HfModelReader&&) noexcept;

  /// Whether a folder looks like one: it has a config.json.
  static bool recognises(const std::filesystem::path& folder);

  const std::filesystem::path& path() const override;
  const ModelConfig& config() const override;
  /// BF16 where all weights are.
  DType dtype() const override;
  std::size_t weight_count() const override;
  StoredWeight weight(const std::string& name, DType wanted) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct HfWriteOptions {
  DType dtype = DType::kF32;  ///< or bf16, rounded to nearest
  /// Tensors go into several files, with an index, where they would make one larger than this. A
  /// tensor is never split.
  std::uint64_t max_file_bytes = 5'000'000'000;
  const Tokenizer* tokenizer = nullptr;  ///< null: the folder gets none
};

/// Writes a folder that `transformers` loads, whole or not at all. Throws a config error for a
/// model that is no GPT-2, an input error where the folder already exists.
void write_hf_model(const std::filesystem::path& folder, WeightSource& source,
                    const HfWriteOptions& options);

}  // namespace llmc
