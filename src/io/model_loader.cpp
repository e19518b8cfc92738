#include "llmc/io/model_loader.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <variant>

#include "io/checkpoint_folder.h"
#include "io/manifest.h"
#include "llmc/core/error.h"
#include "llmc/io/hf_model.h"
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

// Any of them tells that a Hugging Face folder has a tokenizer.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "vocab.json", "tokenizer.tiktoken",
                                           "tokenizer.bin"};

constexpr const char* kExpected =
    "expected a run folder, a checkpoint folder, a Hugging Face folder or an llm.c model file";

/// What in a folder holds the model: a checkpoint of a run, or the folder itself.
fs::path model_in(const fs::path& folder) {
  if (is_file(folder / kManifestName)) return folder;
  if (const std::optional<fs::path> newest = latest_checkpoint(folder)) return *newest;
  if (HfModelReader::recognises(folder)) return folder;
  if (is_folder(checkpoints_folder(folder))) {
    fail(ErrorKind::kInput, "model_loader", folder.string(),
         ": expected a run with a checkpoint, got one that has written none yet");
  }
  fail(ErrorKind::kInput, "model_loader", folder.string(), ": ", kExpected,
       ", got a folder that is none of them");
}

}  // namespace

struct ModelLoader::Impl {
  fs::path source;
  std::variant<CheckpointReader, HfModelReader, LlmcModelReader> reader;

  using Reader = decltype(reader);
  static Reader open(const fs::path& source) {
    if (is_file(source / kManifestName)) return CheckpointReader(source);
    if (is_folder(source)) return HfModelReader(source);
    if (LlmcModelReader::recognises(source)) return LlmcModelReader(source);
    fail(ErrorKind::kInput, "model_loader", source.string(), ": ", kExpected, ", got another file");
  }

  WeightSource& weights() {
    return std::visit([](auto& open) -> WeightSource& { return open; }, reader);
  }
};

ModelLoader::ModelLoader(const fs::path& path) {
  std::error_code ignored;
  if (fs::status(path, ignored).type() == fs::file_type::not_found) {
    fail(ErrorKind::kInput, "model_loader", kExpected, ", got '", path.string(),
         "', which does not exist");
  }
  const fs::path source = is_folder(path) ? model_in(path) : path;
  impl_ = std::make_unique<Impl>(Impl{source, Impl::open(source)});
}

ModelLoader::~ModelLoader() = default;
ModelLoader::ModelLoader(ModelLoader&&) noexcept = default;
ModelLoader& ModelLoader::operator=(ModelLoader&&) noexcept = default;

const fs::path& ModelLoader::source() const {
  return impl_->source;
}

const ModelConfig& ModelLoader::config() const {
  return impl_->weights().config();
}

DType ModelLoader::dtype() const {
  return impl_->weights().dtype();
}

const CheckpointInfo* ModelLoader::checkpoint() const {
  const auto* reader = std::get_if<CheckpointReader>(&impl_->reader);
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

std::optional<fs::path> ModelLoader::tokenizer_folder() const {
  if (std::holds_alternative<HfModelReader>(impl_->reader)) {
    const bool has_one =
        std::any_of(std::begin(kTokenizerFiles), std::end(kTokenizerFiles),
                    [&](const char* name) { return is_file(impl_->source / name); });
    return has_one ? std::optional(impl_->source) : std::nullopt;
  }
  const std::optional<fs::path> run = run_folder();
  if (!run || !is_folder(*run / kTokenizerFolder)) return std::nullopt;
  return *run / kTokenizerFolder;
}

void ModelLoader::read_weights(Stream& stream, const ParameterSet& parameters) {
  impl_->weights().read_weights(stream, parameters);
}

WeightSource& ModelLoader::weights() {
  return impl_->weights();
}

}  // namespace llmc
