#include <algorithm>
#include <ctime>
#include <system_error>
#include <tuple>

#include "data/dataset_name.h"
#include "io/checkpoint_folder.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"
#include "llmc/data/dataset_info.h"
#include "llmc/train/run_folder.h"
#include "llmc/train/training_run.h"

namespace llmc {
namespace fs = std::filesystem;
namespace {

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

// Says which newer checkpoints of the run are not there in full, as after a crash.
void tell_of_passed_over(const fs::path& checkpoint) {
  std::string list;
  for (const std::string& text : passed_over_after(checkpoint)) {
    list += concat(list.empty() ? "" : ", ", text);
  }
  if (list.empty()) return;
  log(LogLevel::kWarning, concat("going on from ", checkpoint.string(),
                                 ", the newest whole checkpoint; passed over: ", list));
}

// The checkpoint that `resume` means; nothing if auto finds none.
std::optional<fs::path> checkpoint_to_resume(const TrainConfig& config) {
  if (config.resume.empty()) return std::nullopt;
  if (config.overwrite) {
    fail(ErrorKind::kConfig, "run", "expected resume or overwrite, got both");
  }
  if (config.resume == "auto") {
    if (config.out_dir.empty()) {
      fail(ErrorKind::kConfig, "run", "resume = auto: expected out_dir to be given as well");
    }
    const auto newest = latest_checkpoint(config.out_dir);
    if (newest) tell_of_passed_over(*newest);
    return newest;
  }
  const ModelLoader loader(config.resume);
  if (!loader.checkpoint()) {
    fail(ErrorKind::kConfig, "run", "resume: expected auto, a run or a checkpoint folder, got ",
         config.resume);
  }
  if (loader.source() != fs::path(config.resume)) tell_of_passed_over(loader.source());
  return loader.source();
}

// The first option whose value would change although it must stay.
void refuse_changes(const TrainConfig& recorded, const TrainConfig& wanted,
                    const fs::path& checkpoint) {
  for (const ConfigOption& option : config_options()) {
    if (option.on_resume != OnResume::kFixed) continue;
    const std::string before = option_text(recorded, option);
    const std::string after = option_text(wanted, option);
    if (before != after) {
      fail(ErrorKind::kConfig, "run", option.key, ": expected ", before.empty() ? "''" : before,
           " as recorded in ", checkpoint.string(), ", got ", after.empty() ? "''" : after,
           "; it cannot change on resume");
    }
  }
}

// A run goes on without its tokenizer, which only samples need.
std::unique_ptr<Tokenizer> tokenizer_of_run(const fs::path& run, const TrainConfig& config) {
  if (config.tokenizer.empty()) return nullptr;
  const fs::path copy = run / kTokenizerFolder;
  try {
    return load_tokenizer(fs::exists(copy) ? copy : fs::path(config.tokenizer));
  } catch (const Error& error) {
    log(LogLevel::kWarning, concat("samples will be token ids: ", error.what()));
    return nullptr;
  }
}

void plan_resume(RunPlan& plan, std::span<const ConfigSetting> given, const TrainConfig& asked) {
  const fs::path& checkpoint = *plan.checkpoint;
  const ModelLoader loader(checkpoint);
  if (loader.checkpoint()->optimizer.empty()) {
    fail(ErrorKind::kConfig, "run", "resume: expected the state of a run, got ",
         checkpoint.string(), ", which holds weights alone; start from it with init_from");
  }
  const fs::path run = loader.run_folder().value_or(fs::path());
  if (run.empty() && asked.out_dir.empty()) {
    fail(ErrorKind::kConfig, "run", "out_dir: expected a folder, got none; ", checkpoint.string(),
         " lies in no run");
  }
  TrainConfig recorded;
  apply_settings(recorded, parse_config(loader.checkpoint()->train_config,
                                        (checkpoint / "manifest.json").string()));
  plan.config = recorded;
  apply_settings(plan.config, given);
  plan.tokenizer = tokenizer_of_run(run, recorded);
  resolve(plan.config, plan.tokenizer.get(), nullptr, plan.ranks);
  refuse_changes(recorded, plan.config, checkpoint);
  plan.model = loader.config();
  if (asked.out_dir.empty()) plan.config.out_dir = run.string();
  const bool same_run = fs::weakly_canonical(plan.config.out_dir) == fs::weakly_canonical(run);
  if (!same_run && holds_run(plan.config.out_dir)) {
    fail(ErrorKind::kConfig, "run", "out_dir: expected the run of ", checkpoint.string(),
         " or a new folder, got ", plan.config.out_dir, ", which holds another run");
  }
}

// Weights without a manifest are damaged checkpoints, which only the user may give up.
void refuse_damaged_checkpoints(const TrainConfig& config) {
  std::error_code ignored;
  for (const auto& entry :
       fs::directory_iterator(fs::path(config.out_dir) / "checkpoints", ignored)) {
    if (!entry.path().filename().string().starts_with("step_")) continue;
    fail(ErrorKind::kInput, "run", "resume: expected a whole checkpoint in ", config.out_dir,
         ", got only damaged ones such as ", entry.path().string(),
         ", which has no manifest.json; start anew with --overwrite or in another out_dir");
  }
}

// Size of the vocabulary that the training data's sidecar tells; 0: unknown. Where no tokenizer is
// given, takes the data's. A dry run goes on without data.
std::int64_t take_tokenizer_of_data(TrainConfig& config) {
  if (config.train_data.empty()) return 0;
  try {
    const fs::path first = glob_files(config.train_data).front();
    const auto info = find_dataset_info(first);
    if (!info) return 0;
    if (config.tokenizer.empty()) config.tokenizer = dataset_tokenizer(first);
    return info->vocab_size;
  } catch (const Error&) {
    if (!config.dry_run) throw;
    return 0;
  }
}

// Where neither the options nor the data name a tokenizer, takes the model's own; tells when it is
// another than theirs. A model can do without.
void take_tokenizer_of_model(RunPlan& plan) {
  const std::optional<fs::path> folder = plan.init->tokenizer_folder();
  if (!folder) return;
  std::unique_ptr<Tokenizer> own;
  try {
    own = load_model_tokenizer(*plan.init);
  } catch (const Error& error) {
    log(LogLevel::kWarning, concat("goes on without the model's tokenizer: ", error.what()));
    return;
  }
  if (!plan.tokenizer) {
    plan.config.tokenizer = folder->string();
    plan.tokenizer = std::move(own);
  } else if (plan.tokenizer->hash() != own->hash()) {
    log(LogLevel::kWarning, concat("the model of ", plan.config.init_from,
                                   " learned with another tokenizer than ", plan.config.tokenizer));
  }
}

void warn_of_larger_vocabulary(const TrainConfig& config, std::int64_t data_vocab) {
  constexpr std::int64_t kPadding = 128;  // sizes are often rounded up to a multiple of this
  if (data_vocab == 0 || config.vocab_size < data_vocab + kPadding) return;
  log(LogLevel::kWarning,
      concat("vocab_size is ", config.vocab_size, ", but the training data was prepared with a ",
             "tokenizer of ", data_vocab, "; the rest is never seen"));
}

void plan_start(RunPlan& plan, std::string_view name) {
  TrainConfig& config = plan.config;
  const std::int64_t data_vocab = take_tokenizer_of_data(config);
  if (config.init_from != "scratch") plan.init.emplace(config.init_from);
  if (!config.tokenizer.empty()) plan.tokenizer = load_tokenizer(config.tokenizer);
  if (plan.init) take_tokenizer_of_model(plan);
  if (config.vocab_size == 0 && !plan.init && !plan.tokenizer) config.vocab_size = data_vocab;
  plan.model = resolve(config, plan.tokenizer.get(), plan.init ? &*plan.init : nullptr, plan.ranks);
  warn_of_larger_vocabulary(config, data_vocab);
  if (config.dry_run) return;
  if (config.out_dir.empty()) config.out_dir = concat("runs/", name, "-", timestamp());
  if (!holds_run(config.out_dir)) return;
  plan.clear_folder = config.overwrite || config.resume == "auto";
  if (!plan.clear_folder) {
    fail(ErrorKind::kConfig, "run", "out_dir: expected a new folder, got ", config.out_dir,
         ", which holds a run; continue it with --resume auto or delete it with --overwrite");
  }
  if (!config.overwrite) refuse_damaged_checkpoints(config);
}

void take_size(std::int64_t& given, std::int64_t from_file, std::string_view key,
               std::string_view file) {
  if (given != 0 && given != from_file) {
    fail(ErrorKind::kConfig, "run", key, ": expected ", from_file, " as in ", file, ", got ",
         given);
  }
  given = from_file;
}

// Why the sidecar of the training data does not tell the size of the vocabulary; empty where their
// name is not that of prepared data.
std::string missing_sidecar(const TrainConfig& config) {
  if (config.train_data.empty()) return {};
  try {
    const fs::path first = glob_files(config.train_data).front();
    const auto name = dataset_name_of(first.filename().string());
    if (!name) return {};
    const fs::path sidecar = first.parent_path() / sidecar_name(*name);
    std::error_code ignored;
    const bool there = fs::is_regular_file(sidecar, ignored);
    return concat(sidecar.string(), ", which would tell it, ",
                  there ? concat("does not list ", first.filename().string()) : "is not there",
                  "; ");
  } catch (const Error&) {  // a dry run goes on without data
    return {};
  }
}

// The sizes that neither a preset nor the options leave open.
ModelConfig model_of_sizes(TrainConfig& config, const Tokenizer* tokenizer) {
  ModelConfig preset;
  const bool named = !config.model.empty();
  if (named) preset = ModelConfig::preset(config.model);
  const auto fill = [&](std::int64_t& size, std::int64_t from_preset, std::string_view key) {
    if (size == 0 && named) size = from_preset;
    if (size > 0) return;
    fail(ErrorKind::kConfig, "run", key, ": expected a number above 0, got 0; ",
         key == "vocab_size" ? missing_sidecar(config) : "", "give it, or a preset with model");
  };
  fill(config.n_layer, preset.n_layer, "n_layer");
  fill(config.n_head, preset.n_head, "n_head");
  fill(config.n_embd, preset.n_embd, "n_embd");
  fill(config.block_size, preset.block_size, "block_size");
  if (config.vocab_size == 0 && tokenizer) config.vocab_size = tokenizer->vocab_size();
  fill(config.vocab_size, preset.vocab_size, "vocab_size");
  return ModelConfig::gpt2(config.n_layer, config.n_head, config.n_embd, config.block_size,
                           config.vocab_size);
}

// A preset may stand beside a file, but it must be the file's.
void check_preset(std::string_view name, const ModelConfig& model, std::string_view file) {
  const ModelConfig preset = ModelConfig::preset(name);
  const auto sizes = [](const ModelConfig& c) { return std::tie(c.n_layer, c.n_head, c.n_embd); };
  if (sizes(preset) == sizes(model)) return;
  fail(ErrorKind::kConfig, "run", "model: expected none, or one of ", model.n_layer, " layers, ",
       model.n_head, " heads and width ", model.n_embd, " as in ", file, ", got ", name);
}

}  // namespace

ModelConfig resolve(TrainConfig& config, const Tokenizer* tokenizer, const ModelLoader* init,
                    int ranks) {
  ModelConfig model;
  if (init) {
    model = init->config();
    const std::string file = init->source().string();
    if (!config.model.empty()) check_preset(config.model, model, file);
    take_size(config.n_layer, model.n_layer, "n_layer", file);
    take_size(config.n_head, model.n_head, "n_head", file);
    take_size(config.n_embd, model.n_embd, "n_embd", file);
    take_size(config.block_size, model.block_size, "block_size", file);
    take_size(config.vocab_size, model.vocab_size, "vocab_size", file);
  } else {
    model = model_of_sizes(config, tokenizer);
  }
  model.validate();
  if (tokenizer && tokenizer->vocab_size() > config.vocab_size) {
    fail(ErrorKind::kConfig, "run", "vocab_size: expected at least the ", tokenizer->vocab_size(),
         " tokens of the tokenizer, got ", config.vocab_size);
  }
  if (config.seq_len == 0) config.seq_len = config.block_size;
  if (config.seq_len > config.block_size) {
    fail(ErrorKind::kConfig, "run", "seq_len: expected at most block_size (", config.block_size,
         "), got ", config.seq_len);
  }
  constexpr std::int64_t kMostTokens = 9'000'000'000'000'000;
  if (config.micro_batch * config.seq_len > kMostTokens / ranks) {
    fail(ErrorKind::kConfig, "run", "micro_batch: expected micro_batch × seq_len × ranks to be at ",
         "most ", kMostTokens, " tokens, got ", config.micro_batch, " × ", config.seq_len, " × ",
         ranks);
  }
  const std::int64_t micro_tokens = config.micro_batch * config.seq_len * ranks;
  config.tokens_per_step = micro_steps_of(config.tokens_per_step, micro_tokens) * micro_tokens;
  return model;
}

RunPlan plan_run(std::span<const ConfigSetting> given, std::string_view name, int ranks) {
  RunPlan plan;
  apply_settings(plan.config, given);
  const TrainConfig asked = plan.config;
  const bool pretends = asked.dry_run && asked.dry_run_ranks > 0;
  plan.ranks = pretends ? static_cast<int>(asked.dry_run_ranks) : ranks;
  if (!asked.dry_run && asked.train_data.empty() && asked.resume.empty()) {
    fail(ErrorKind::kConfig, "run", "train_data: expected token files, got none");
  }
  plan.checkpoint = checkpoint_to_resume(asked);
  if (plan.checkpoint) {
    plan_resume(plan, given, asked);
  } else {
    plan_start(plan, name);
  }
  return plan;
}

}  // namespace llmc
