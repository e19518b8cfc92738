#include "llmc/train/run_folder.h"

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/io/checkpoint.h"
#include "llmc/train/sinks.h"

namespace llmc {
namespace fs = std::filesystem;

bool holds_run(const fs::path& folder) {
  for (const char* name : {"config.toml", "log.jsonl", "checkpoints"}) {
    std::error_code error;
    if (fs::exists(folder / name, error)) return true;
    if (error) {
      fail(ErrorKind::kIo, "run", "cannot look into ", folder.string(), ": ", error.message());
    }
  }
  return false;
}

void clear_run(const fs::path& folder) {
  // As long as config.toml is the old one, a script may take this for not begun, and begin again.
  for (const char* name :
       {"checkpoints", "log.jsonl", "main.log", "loss.svg", kTokenizerFolder, "config.toml"}) {
    fs::remove_all(folder / name);
  }
}

void cut_run(const fs::path& folder, std::int64_t step) {
  cut_json_log(folder / "log.jsonl", step);
  cut_main_log(folder / "main.log", step);
  remove_checkpoints_after(folder, step);
}

void describe_run(const fs::path& folder, const TrainConfig& config, const Tokenizer* tokenizer) {
  make_folders(folder);
  write_text(folder / "config.toml", config_text(config));
  if (tokenizer && !fs::exists(folder / kTokenizerFolder)) {
    make_folders(folder / kTokenizerFolder);
    tokenizer->save(folder / kTokenizerFolder);
  }
}

std::string tokenizer_hash(const ModelLoader& model) {
  return model.checkpoint() ? model.checkpoint()->tokenizer_hash : std::string();
}

std::unique_ptr<Tokenizer> load_model_tokenizer(const ModelLoader& model, const std::string& name) {
  std::unique_ptr<Tokenizer> found;
  if (!name.empty()) {
    found = load_tokenizer(name);
  } else if (const auto folder = model.tokenizer_folder()) {
    found = load_tokenizer(*folder);
  } else {
    return nullptr;
  }
  const std::string hash = tokenizer_hash(model);
  if (!hash.empty() && found->hash() != hash) {
    fail(ErrorKind::kInput, "model", "tokenizer: expected the one that ", model.source().string(),
         " was trained with (hash ", hash, "), got ", found->name(), " (", found->hash(), ")");
  }
  if (found->vocab_size() > model.config().vocab_size) {
    fail(ErrorKind::kInput, "model", "tokenizer: expected at most the ", model.config().vocab_size,
         " tokens of the model, got ", found->vocab_size());
  }
  return found;
}

}  // namespace llmc
