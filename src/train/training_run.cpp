#include "llmc/train/training_run.h"

#include <cstdlib>
#include <exception>
#include <system_error>

#include "core/system_limits.h"
#include "llmc/comm/agreement.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"
#include "llmc/data/dataset_info.h"
#include "llmc/data/token_file.h"
#include "llmc/ops/linear.h"
#include "llmc/train/run_folder.h"
#include "llmc/train/sinks.h"
#include "train/ranks.h"

namespace llmc {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMatmulChoicesFile = "matmul_choices.tsv";

/// Where timed choices of matrix products are kept from run to run: the user's folder for such.
std::string tuning_cache() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  fs::path folder = variable("XDG_CACHE_HOME");
  if (folder.empty() && !variable("HOME").empty()) folder = variable("HOME") / ".cache";
  return folder.empty() ? "" : (folder / "llmc" / kMatmulChoicesFile).string();
}

}  // namespace

DeviceOptions device_options(const TrainConfig& config, const RankPlace& place) {
  if (config.device != "auto" && config.device != backend_name()) {
    fail(ErrorKind::kConfig, "train", "device: expected ", backend_name(),
         ", which this program was built for, got ", config.device,
         "; build another with -DLLMC_BACKEND=", config.device);
  }
  DeviceOptions options;
  options.threads = static_cast<int>(config.threads);
  if (config.threads == 0 && place.local_ranks > 1) {
    options.threads = default_threads(place.local_ranks);
  }
  options.gpu = place.gpu;
  options.isa = config.isa;
  options.attention = config.attention;
  options.tune_matmul = config.tune_matmul;
  options.tuning_cache = tuning_cache();
  return options;
}

StartUp start_up_options(const TrainConfig& config) {
  StartUp start;
  start.method = config.comm_init;
  start.address = config.comm_address;
  start.port = static_cast<int>(config.comm_port);
  start.rank = static_cast<int>(config.comm_rank);
  start.size = static_cast<int>(config.comm_size);
  start.file = config.comm_file;
  start.token = config.comm_token;
  start.deadline_s = config.comm_deadline;
  start.transport = config.comm_transport;
  return start;
}

namespace {

TransformerOptions model_options(const TrainConfig& config, int ranks) {
  TransformerOptions options;
  options.micro_batch = config.micro_batch;
  options.seq_len = config.seq_len;
  options.dtype = config.precision == "bf16" ? DType::kBF16 : DType::kF32;
  options.tf32 = config.precision == "tf32";
  options.recompute = recompute_from_name(config.recompute);
  options.ranks = ranks;
  return options;
}

AdamW make_optimizer(const ParameterSet& parameters, const TrainConfig& config,
                     Communicator* comm) {
  AdamWOptions options;
  options.beta1 = static_cast<float>(config.beta1);
  options.beta2 = static_cast<float>(config.beta2);
  options.eps = static_cast<float>(config.eps);
  options.weight_decay = static_cast<float>(config.weight_decay);
  GuardOptions guard;
  guard.grad_clip = static_cast<float>(config.grad_clip);
  guard.skip_loss_z = static_cast<float>(config.skip_loss_z);
  guard.skip_grad_z = static_cast<float>(config.skip_grad_z);
  const Sharing sharing{comm, static_cast<int>(config.zero_stage),
                        config.reduce_dtype == "bf16" ? DType::kBF16 : DType::kF32};
  return AdamW(parameters, options, guard, config.master_weights, sharing);
}

DataLoaderOptions loader_options(const TrainConfig& config) {
  DataLoaderOptions options;
  options.B = config.micro_batch;
  options.T = config.seq_len;
  options.vocab_size = config.vocab_size;
  return options;
}

/// The run folder while a run starts: what of it the start has made is removed again unless it is
/// kept.
class NewFolder {
 public:
  /// Makes the folder and its parents, and locks it.
  NewFolder(const fs::path& folder, std::optional<FolderLock>& lock) : folder_(folder) {
    std::error_code ignored;
    std::vector<fs::path> missing;
    for (fs::path path = folder; !path.empty() && !fs::exists(path, ignored);
         path = path.parent_path()) {
      missing.push_back(path);
    }
    make_folders(folder);
    lock.emplace(folder);
    made_ = std::move(missing);
  }
  ~NewFolder() {
    if (made_.empty()) return;
    try {
      clear_run(folder_);
      std::error_code ignored;
      for (const fs::path& path : made_) fs::remove(path, ignored);  // leaves one that is not empty
    } catch (const fs::filesystem_error& error) {
      log(LogLevel::kWarning, concat("cannot remove what the start has made: ", error.what()));
    }
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  void keep() { made_.clear(); }

 private:
  fs::path folder_;
  std::vector<fs::path> made_;  // innermost first
};

std::unique_ptr<Communicator> planned_ranks(const RunPlan& plan) {
  if (!plan.config.dry_run || plan.ranks == 1) return nullptr;
  return std::make_unique<PlannedRanks>(plan.ranks);
}

}  // namespace

TrainingRun::TrainingRun(RunPlan plan)
    : TrainingRun{Device::open(device_options(plan.config)), std::move(plan)} {}

TrainingRun::TrainingRun(const Device& device, RunPlan plan, Communicator* comm)
    : plan_(std::move(plan)),
      planned_(planned_ranks(plan_)),
      comm_(planned_ ? planned_.get() : comm),
      device_(device) {
  const TrainConfig& config = plan_.config;
  if (!config.dry_run) open_data();
  if (plan_.checkpoint) checkpoint_.emplace(*plan_.checkpoint);
  model_.emplace(device_, plan_.model, model_options(config, plan_.ranks));
  optimizer_.emplace(make_optimizer(model_->parameters(), config, comm_));
  if (comm_ && !config.dry_run) agree();
}

void TrainingRun::agree() {
  std::vector<Belief> beliefs;
  for (const ConfigOption& option : config_options()) {
    // Where each rank runs is its own matter, and rank 0 decides where the run is kept.
    const bool own = option.key == "out_dir" || option.key == "threads";
    if (own || option.on_resume == OnResume::kAction) continue;
    beliefs.push_back({std::string(option.key), option_text(plan_.config, option)});
  }
  const std::string step =
      checkpoint_ ? concat("step ", checkpoint_->info().step, " of ", plan_.checkpoint->string())
                  : "none";
  beliefs.push_back({"checkpoint to go on from", step});
  beliefs.push_back({"tokens of the training data", concat(train_source_->tokens_per_epoch())});
  beliefs.push_back(
      {"tokens of the validation data", concat(val_source_ ? val_source_->tokens_per_epoch() : 0)});
  const TrainConfig& config = plan_.config;
  const auto content = [](const std::string& pattern) {
    return concat("checksum ", sample_checksum(glob_files(pattern)));
  };
  beliefs.push_back({"content of the training data", content(config.train_data)});
  beliefs.push_back(
      {"content of the validation data", val_source_ ? content(config.val_data) : "none"});
  beliefs.push_back(
      {"questions of eval_choices", concat(choices_.size(), ", checksum ", checksum_of(choices_))});
  expect_agreement(*comm_, model_->stream(), beliefs);
  plan_.config.out_dir = text_of_rank_0(*comm_, model_->stream(), plan_.config.out_dir);
}

void TrainingRun::barrier() {
  if (comm_) comm_->barrier(model_->stream());
}

TrainingRun::~TrainingRun() = default;

void TrainingRun::open_data() {
  const TrainConfig& config = plan_.config;
  const auto train_files = glob_files(config.train_data);
  DataLoaderOptions options = loader_options(config);
  options.rank = rank();
  options.world_size = plan_.ranks;
  options.shuffle = config.shuffle;
  options.seed = static_cast<std::uint64_t>(config.seed);
  train_source_ = std::make_unique<DataLoader>(train_files, options);
  std::vector<fs::path> val_files;
  if (!config.val_data.empty() && config.val_every > 0) {
    val_files = glob_files(config.val_data);
    options = loader_options(config);
    options.tail = Tail::kPad;
    val_source_ = std::make_unique<DataLoader>(val_files, options);
    val_facts_ = {bytes_per_token(val_files), floor_bits_per_byte(val_files)};
  }
  open_choices();
  if (plan_.tokenizer) {
    check_tokenizer(train_files, plan_.tokenizer->hash());
    check_tokenizer(val_files, plan_.tokenizer->hash());
  }
}

void TrainingRun::open_choices() {
  const TrainConfig& config = plan_.config;
  if (config.eval_choices.empty() || config.eval_choices_every == 0) return;
  try {
    choices_ = read_choices(config.eval_choices, plan_.tokenizer.get());
  } catch (const Error& error) {
    // A run that has lost its tokenizer goes on without what needs one.
    if (error.kind() != ErrorKind::kConfig || !plan_.checkpoint) throw;
    log(LogLevel::kWarning, concat("eval_choices are not asked: ", error.what()));
    return;
  }
  const auto most = static_cast<std::size_t>(config.eval_choices_max);
  if (most > 0 && choices_.size() > most) choices_.resize(most);
  check_choices(choices_, plan_.model.vocab_size, config.seq_len);
}

std::string TrainingRun::report() const {
  const Arena& model = model_->arena();
  const Arena& optimizer = optimizer_->arena();
  const std::size_t copy = model.bytes(MemoryKind::kParameters) + optimizer.bytes();
  const std::size_t workspace = model_->stream().workspace_bytes();
  const std::size_t exchange = comm_ ? comm_->memory_bytes() : 0;
  const std::string ranks = plan_.ranks == 1
                                ? ""
                                : concat(", on each of ", plan_.ranks, " ranks with zero_stage ",
                                         plan_.config.zero_stage);
  return concat(model_->report(), "\noptimizer (", optimizer_->name(), ")", ranks, "\n",
                optimizer.report(), "\nworkspace of the ops ", format_bytes(workspace),
                exchange > 0 ? concat(", of the exchange ", format_bytes(exchange)) : "",
                "\nin all ", format_bytes(model.bytes() + optimizer.bytes() + workspace + exchange),
                ", and for the copy that a checkpoint is written from ", format_bytes(copy),
                "; free now ", format_bytes(device_.free_memory()), "\n");
}

void TrainingRun::open() {
  if (!comm_) return set_up();
  try {
    set_up();
  } catch (const std::exception& error) {
    comm_->give_up(error);
    throw;
  }
}

void TrainingRun::set_up() {
  const TrainConfig& config = plan_.config;
  model_->allocate();
  optimizer_->allocate(device_);
  if (plan_.init) {
    plan_.init->read_weights(model_->stream(), model_->parameters());
  } else if (!checkpoint_) {
    model_->init(static_cast<std::uint32_t>(config.seed));
  }
  optimizer_->start(model_->stream());
  trainer_.emplace(config, *model_, *train_source_, *optimizer_);
  if (val_source_) trainer_->validate_on(*val_source_, val_facts_);
  if (!choices_.empty()) trainer_->ask(choices_);
  if (plan_.tokenizer) trainer_->decode_with(*plan_.tokenizer);
  if (checkpoint_) trainer_->resume(*checkpoint_);
  if (comm_) {
    const std::uint64_t weights = checksum_of(model_->stream(), model_->parameters());
    expect_agreement(*comm_, model_->stream(),
                     std::vector<Belief>{{"weights to start with", concat("checksum ", weights)}});
  }
  set_up_folder();
}

void TrainingRun::set_up_folder() {
  const TrainConfig& config = plan_.config;
  const fs::path folder = config.out_dir;
  barrier();  // all have read what they go on from
  std::optional<NewFolder> made;
  if (rank() == 0) made.emplace(folder, lock_);
  if (optimizer_->sharing().sliced()) {
    if (const auto blind = rank_without_folder(*comm_, model_->stream(), folder)) {
      made.reset();
      barrier();  // where one process ends, its launcher may end the others
      fail(ErrorKind::kConfig, "run", "out_dir: expected a folder that all ranks see, got ",
           folder.string(), ", which on rank ", *blind,
           " is not the one of rank 0; give one on a file system that all machines share");
    }
  }
  if (rank() == 0) {
    if (plan_.clear_folder) clear_run(folder);
    best_checkpoint(folder);  // a damaged record shows now, not at the first checkpoint
    if (checkpoint_) cut_run(folder, trainer_->step());
    describe_run(folder, config, plan_.tokenizer.get());
  }
  barrier();
  std::string hash;
  if (plan_.tokenizer) {
    hash = plan_.tokenizer->hash();
  } else if (checkpoint_) {
    hash = checkpoint_->info().tokenizer_hash;
  }
  trainer_->save_to(folder, hash);
  if (rank() != 0) return;
  folder_sinks_.push_back(std::make_unique<JsonLog>(folder / "log.jsonl"));
  folder_sinks_.push_back(std::make_unique<MainLog>(folder / "main.log"));
  folder_sinks_.push_back(std::make_unique<LossPlot>(folder));
  for (const auto& sink : folder_sinks_) trainer_->add_sink(*sink);
  made->keep();
}

void TrainingRun::add_sink(EventSink& sink) {
  trainer_->add_sink(sink);
}

StopEvent TrainingRun::run(const std::atomic<int>* stop) {
  if (stop) trainer_->stop_when(*stop);
  const StopEvent end = trainer_->run();
  const std::string choices = matmul_choices(model_->stream());
  if (!choices.empty() && rank() == 0)
    write_text(fs::path(plan_.config.out_dir) / kMatmulChoicesFile, choices);
  return end;
}

}  // namespace llmc
