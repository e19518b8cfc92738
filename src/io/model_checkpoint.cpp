#include <utility>
#include <vector>

#include "io/checkpoint_folder.h"
#include "io/manifest.h"
#include "io/staged_folder.h"
#include "io/tensor_stream.h"
#include "io/weight_table.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/safetensors.h"

namespace llmc {
namespace {

/// Writes the weights and describes them in the manifest.
void write_weights(const std::filesystem::path& folder, WeightSource& source, DType dtype,
                   Manifest& manifest) {
  const ModelConfig& config = source.config();
  std::vector<SafetensorsSpec> specs;
  for (const WeightId& id : weights_by_layer(config.n_layer)) {
    specs.push_back(
        {id.kind->full_name(id.layer), dtype, id.kind->shape(config, config.padded_vocab_size())});
  }
  const std::string name(kWeightsFile);
  SafetensorsWriter file(folder / name, specs, {{"step", std::to_string(manifest.info.step)}});
  for (const SafetensorsSpec& spec : specs) {
    const StoredWeight stored = source.weight(spec.name, dtype);
    Checksum64 checksum;
    convert_elements(stored.shape.numel(), stored.dtype, stored.read, dtype,
                     [&](const void* data, std::int64_t count) {
                       const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
                       file.write(spec.name, data, bytes);
                       checksum.update(data, bytes);
                     });
    manifest.weights[spec.name] = {
        dtype, spec.shape, {{name, 0, spec.shape.numel(), checksum.value()}}};
  }
  file.commit();
  manifest.files[name] = {file.file_bytes(), file.header_checksum()};
}

}  // namespace

void write_model_checkpoint(const std::filesystem::path& run, WeightSource& source, DType dtype,
                            CheckpointInfo info, const Tokenizer* tokenizer) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    fail(ErrorKind::kConfig, "checkpoint", "cannot write ", run.string(),
         ": expected f32 or bf16, got ", name_of(dtype));
  }
  StagedFolder staged(run);
  Manifest manifest;
  manifest.info = std::move(info);
  manifest.info.model = source.config();
  manifest.info.optimizer.clear();
  if (tokenizer != nullptr) {
    tokenizer->save(staged.path() / kTokenizerFolder);
    manifest.info.tokenizer_hash = tokenizer->hash();
  }
  const auto folder = checkpoint_folder(staged.path(), manifest.info.step);
  make_folders(folder);
  write_weights(folder, source, dtype, manifest);
  write_text(folder / kManifestName, to_json(manifest));
  sync_folder(folder.parent_path());
  staged.publish();
}

}  // namespace llmc
