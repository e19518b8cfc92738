#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "data/bpe_tokenizer.h"
#include "io/hf_config.h"
#include "io/hf_files.h"
#include "io/staged_folder.h"
#include "io/tensor_stream.h"
#include "io/transpose.h"
#include "io/weight_table.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"
#include "llmc/io/hf_model.h"
#include "llmc/io/safetensors.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string file_name_of(const WeightId& id) {
  return concat(kHfPrefix, id.kind->full_hf_name(id.layer));
}

Shape stored_shape(const WeightId& id, const ModelConfig& config) {
  const Shape shape = id.kind->shape(config, config.vocab_size);
  return id.kind->transposed ? Shape{shape.dim(1), shape.dim(0)} : shape;
}

/// The weights of each file, in order.
std::vector<std::vector<WeightId>> split(const ModelConfig& config, DType dtype,
                                         std::uint64_t max_bytes) {
  std::vector<std::vector<WeightId>> files(1);
  std::uint64_t bytes = 0;
  for (const WeightId& id : weights_by_layer(config.n_layer)) {
    const std::uint64_t more =
        static_cast<std::uint64_t>(stored_shape(id, config).numel()) * size_of(dtype);
    if (!files.back().empty() && bytes + more > max_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(id);
    bytes += more;
  }
  return files;
}

std::string name_of_file(std::size_t index, std::size_t count) {
  if (count == 1) return std::string(kHfWeightsFile);
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

/// Writes one weight, read in our layout, in Hugging Face's.
void write_weight(SafetensorsWriter& file, WeightSource& source, const WeightId& id, DType dtype) {
  const std::string name = file_name_of(id);
  const StoredWeight stored = source.weight(id.kind->full_name(id.layer), dtype);
  const Shape& shape = stored.shape;
  const std::size_t size = size_of(dtype);
  if (id.kind->transposed) {
    const auto write_at = [&](std::int64_t begin, const void* data, std::int64_t count) {
      file.write_at(name, static_cast<std::uint64_t>(begin) * size, data,
                    static_cast<std::size_t>(count) * size);
    };
    convert_elements(shape.numel(), stored.dtype, stored.read, dtype,
                     transposed_writer(shape.dim(0), shape.dim(1), size, write_at));
    return;
  }
  // Padding rows are read, as sources check what they read at its end, but not written.
  std::int64_t left = id.kind->shape(source.config(), source.config().vocab_size).numel();
  convert_elements(shape.numel(), stored.dtype, stored.read, dtype,
                   [&](const void* data, std::int64_t count) {
                     const std::int64_t used = std::min(count, left);
                     file.write(name, data, static_cast<std::size_t>(used) * size);
                     left -= used;
                   });
}

void write_weights(const fs::path& folder, WeightSource& source, const HfWriteOptions& options) {
  const ModelConfig& config = source.config();
  const auto files = split(config, options.dtype, options.max_file_bytes);
  json map = json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = name_of_file(i, files.size());
    std::vector<SafetensorsSpec> specs;
    for (const WeightId& id : files[i]) {
      const Shape shape = stored_shape(id, config);
      specs.push_back({file_name_of(id), options.dtype, shape});
      map[file_name_of(id)] = name;
      total += static_cast<std::uint64_t>(shape.numel()) * size_of(options.dtype);
    }
    SafetensorsWriter file(folder / name, specs);
    for (const WeightId& id : files[i]) write_weight(file, source, id, options.dtype);
    file.commit();
  }
  if (files.size() == 1) return;
  const json index{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  write_text(folder / kHfIndexFile, index.dump(2) + "\n");
}

/// The byte tokenizer as byte-pair encoding: a vocabulary of the 256 bytes, and no merges.
BpeTokenizer without_merges(const Tokenizer& byte) {
  BpeModel model;
  for (std::int32_t id = 0; id < byte.vocab_size(); ++id)
    model.tokens.push_back(byte.token_bytes(id));
  model.special = {byte.end_of_text()};
  model.begin_of_text = model.end_of_text = byte.end_of_text();
  return {std::move(model), BpeTokenizer::Files::kJson};
}

/// Writes the tokenizer so that `transformers` finds it.
void write_tokenizer(const fs::path& folder, const Tokenizer& tokenizer, const ModelConfig& model) {
  const auto* bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  if (tokenizer.name() == "byte") {
    without_merges(tokenizer).save(folder);
  } else if (bpe != nullptr && bpe->can_encode()) {
    bpe->save_as(folder, BpeTokenizer::Files::kJson);
  } else {
    tokenizer.save(folder);
    log(LogLevel::kWarning,
        concat("the tokenizer of ", folder.string(), " only decodes: transformers cannot load it"));
    return;
  }
  std::error_code ignored;
  const bool has_pair = fs::is_regular_file(folder / "vocab.json", ignored);
  const std::string begin_of_text(tokenizer.token_bytes(tokenizer.begin_of_text()));
  const std::string end_of_text(tokenizer.token_bytes(tokenizer.end_of_text()));
  const json config{{"tokenizer_class", has_pair ? "GPT2Tokenizer" : "PreTrainedTokenizerFast"},
                    {"model_max_length", model.block_size},
                    {"add_prefix_space", false},
                    {"bos_token", begin_of_text},
                    {"eos_token", end_of_text},
                    {"unk_token", end_of_text}};
  write_text(folder / "tokenizer_config.json", config.dump(2) + "\n");
  const json generation{{"bos_token_id", tokenizer.begin_of_text()},
                        {"eos_token_id", tokenizer.end_of_text()}};
  write_text(folder / "generation_config.json", generation.dump(2) + "\n");
}

}  // namespace

void write_hf_model(const fs::path& folder, WeightSource& source, const HfWriteOptions& options) {
  const ModelConfig& config = source.config();
  require_gpt2(config, folder.string(), /*any_eps=*/true);
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16) {
    fail(ErrorKind::kConfig, "hf_model", "cannot write ", folder.string(),
         ": expected f32 or bf16, got ", name_of(options.dtype));
  }
  if (options.tokenizer != nullptr && options.tokenizer->vocab_size() > config.vocab_size) {
    fail(ErrorKind::kInput, "hf_model", "cannot write ", folder.string(),
         ": expected a tokenizer of at most the ", config.vocab_size, " tokens of the model, got ",
         options.tokenizer->vocab_size());
  }
  StagedFolder staged(folder);
  write_weights(staged.path(), source, options);
  HfTextIds ids;
  if (options.tokenizer != nullptr) {
    write_tokenizer(staged.path(), *options.tokenizer, config);
    ids = {options.tokenizer->begin_of_text(), options.tokenizer->end_of_text()};
  }
  write_text(staged.path() / kHfConfigFile, hf_config_text(config, options.dtype, ids));
  staged.publish();
}

}  // namespace llmc
