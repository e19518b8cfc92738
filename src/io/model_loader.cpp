#include "llmc/io/model_loader.h"

#include <system_error>
#include <utility>
#include <variant>

#include "io/checkpoint_folder.h"
#include "io/manifest.h"
#include "llmc/core/error.h"
#include "llmc/io/llmc_format.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

/// The checkpoint folder that a folder is or holds.
fs::path checkpoint_in(const fs::path& folder) {
  if (is_file(folder / kManifestName)) return folder;
  if (const std::optional<fs::path> newest = latest_checkpoint(folder)) return *newest;
  if (is_file(folder / "config.json")) {
    fail(ErrorKind::kInput, "model_loader", folder.string(),
         ": expected a checkpoint or an llm.c file, got a Hugging Face folder, which is not "
         "supported yet");
  }
  if (is_folder(checkpoints_folder(folder))) {
    fail(ErrorKind::kInput, "model_loader", folder.string(),
         ": expected a run with a checkpoint, got one that has written none yet");
  }
  fail(ErrorKind::kInput, "model_loader", folder.string(),
       ": expected a run folder, a checkpoint folder or an llm.c model file, got a folder that is "
       "neither");
}

}  // namespace

struct ModelLoader::Impl {
  fs::path source;
  std::variant<CheckpointReader, LlmcModelReader> reader;

  const CheckpointReader* checkpoint() const { return std::get_if<CheckpointReader>(&reader); }
  static std::variant<CheckpointReader, LlmcModelReader> open(const fs::path& source) {
    if (is_folder(source)) return CheckpointReader(source);
    if (LlmcModelReader::recognises(source)) return LlmcModelReader(source);
    fail(ErrorKind::kInput, "model_loader", source.string(),
         ": expected a run folder, a checkpoint folder or an llm.c model file, got another file");
  }
};

ModelLoader::ModelLoader(const fs::path& path) {
  std::error_code ignored;
  if (fs::status(path, ignored).type() == fs::file_type::not_found) {
    fail(ErrorKind::kInput, "model_loader",
         "expected a run folder, a checkpoint folder or an llm.c ", "model file, got '",
         path.string(), "', which does not exist");
  }
  const fs::path source = is_folder(path) ? checkpoint_in(path) : path;
  impl_ = std::make_unique<Impl>(Impl{source, Impl::open(source)});
}

ModelLoader::~ModelLoader() = default;
ModelLoader::ModelLoader(ModelLoader&&) noexcept = default;
ModelLoader& ModelLoader::operator=(ModelLoader&&) noexcept = default;

const fs::path& ModelLoader::source() const {
  return impl_->source;
}

const ModelConfig& ModelLoader::config() const {
  if (const CheckpointInfo* info = checkpoint()) return info->model;
  return std::get<LlmcModelReader>(impl_->reader).config();
}

DType ModelLoader::dtype() const {
  return std::visit([](const auto& reader) { return reader.dtype(); }, impl_->reader);
}

const CheckpointInfo* ModelLoader::checkpoint() const {
  const CheckpointReader* reader = impl_->checkpoint();
  return reader == nullptr ? nullptr : &reader->info();
}

std::optional<fs::path> ModelLoader::run_folder() const {
  if (checkpoint() == nullptr) return std::nullopt;
  const fs::path folder = fs::absolute(impl_->source).lexically_normal();
  const fs::path checkpoints =
      (folder.has_filename() ? folder : folder.parent_path()).parent_path();
  if (checkpoints != checkpoints_folder(checkpoints.parent_path())) return std::nullopt;
  return checkpoints.parent_path();
}

void ModelLoader::read_weights(Stream& stream, const ParameterSet& parameters) {
  std::visit([&](auto& reader) { reader.read_weights(stream, parameters); }, impl_->reader);
}

}  // namespace llmc
