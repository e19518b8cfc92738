#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace llmc {

/// Every option of a training run, as values. `config_options()` describes each member: what it
/// means, its range and its unit. An interval of 0 means never.
struct TrainConfig {
  // model
  std::string model;
  std::int64_t n_layer = 0;
  std::int64_t n_head = 0;
  std::int64_t n_embd = 0;
  std::int64_t block_size = 0;
  std::int64_t vocab_size = 0;
  std::string init_from = "scratch";
  std::int64_t seed = 42;
  std::string precision = "fp32";
  std::string recompute = "none";
  bool master_weights = true;
  std::string device = "auto";
  std::int64_t threads = 0;
  std::string isa = "auto";
  std::string attention = "auto";
  bool tune_matmul = true;
  // data
  std::string train_data;
  std::string val_data;
  std::string tokenizer;
  bool shuffle = true;
  // step
  std::int64_t micro_batch = 4;
  std::int64_t seq_len = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t max_steps = 0;
  std::int64_t epochs = 1;
  // ranks
  std::int64_t zero_stage = 1;
  std::string reduce_dtype = "fp32";
  // optimizer
  double lr = 3e-4;
  double final_lr_fraction = 0.1;
  std::string schedule = "cosine";
  std::int64_t warmup_steps = 0;
  double decay_fraction = 0.2;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;
  double skip_loss_z = 0.0;
  double skip_grad_z = 0.0;
  std::int64_t max_bad_steps = 10;
  // start-up
  std::string comm_init = "auto";
  std::string comm_address;
  std::int64_t comm_port = 0;
  std::int64_t comm_rank = -1;
  std::int64_t comm_size = 0;
  std::string comm_file;
  std::string comm_token;
  double comm_deadline = 300.0;
  std::string comm_transport = "auto";
  // run
  std::string out_dir;
  std::int64_t log_every = 1;
  std::int64_t val_every = 250;
  std::int64_t val_tokens = 65536;
  std::string eval_choices;
  std::int64_t eval_choices_every = 0;
  std::int64_t eval_choices_max = 0;
  std::int64_t sample_every = 1000;
  std::int64_t sample_tokens = 64;
  std::int64_t checkpoint_every = 1000;
  std::int64_t keep_checkpoints = 3;
  std::string resume;
  bool overwrite = false;
  bool dry_run = false;
  std::int64_t dry_run_ranks = 0;

  bool operator==(const TrainConfig&) const = default;
};

/// The member an option sets; its type is the option's type.
using ConfigMember = std::variant<bool TrainConfig::*, std::int64_t TrainConfig::*,
                                  double TrainConfig::*, std::string TrainConfig::*>;

/// What a resumed run does with an option that is given with another value.
enum class OnResume {
  kFixed,   ///< it is refused
  kFree,    ///< the new value holds from there on
  kAction,  ///< it says what to do now and is no part of the recorded configuration
};

/// The numbers an option accepts. Text options have no range.
struct ConfigRange {
  static constexpr double kUnbounded = 9e15;  ///< as max: no bound but that of exact integers
  double min = 0;
  double max = 0;
  bool open_min = false;  ///< min itself is outside
  bool open_max = false;  ///< max itself is outside
};

/// One row of the table that the command line, config.toml, the checkpoint's copy of it and
/// docs/configuration.md are made from. The default is the member's value in `TrainConfig{}`.
struct ConfigOption {
  std::string_view key;
  std::string_view group;
  ConfigMember member;
  ConfigRange range;
  std::vector<std::string_view> choices;  ///< of a text option; empty: any text
  std::string_view unit;
  std::string_view help;
  OnResume on_resume = OnResume::kFixed;
};

/// The whole table, by groups, in the order in which it is printed.
std::span<const ConfigOption> config_options();

/// The option of a key, spelled `micro_batch` or `micro-batch`. An unknown one is a config error
/// that names the nearest key there is.
const ConfigOption& find_option(std::string_view key);

/// Sets an option from text as the command line has it (strings without quotes). Text that is not
/// wholly a value of the option's type and range is a config error that names the key.
void set_option(TrainConfig& config, const ConfigOption& option, std::string_view text);

/// The value as set_option reads it; numbers in the shortest form that reads back to the same bits.
std::string option_text(const TrainConfig& config, const ConfigOption& option);

/// "integer", "number", "true or false" or "text".
std::string_view type_name(const ConfigOption& option);

/// "at least 1", "at least 0 and below 1"; empty for {}, the range of options without one.
std::string range_text(const ConfigRange& range);

/// Throws a config error that names the option if the value lies outside; text: the value as given.
void check_range(std::string_view name, const ConfigRange& range, double value,
                 std::string_view text);

/// The name a typo was probably meant for; empty if none is close.
std::string nearest_name(std::string_view name, std::span<const std::string> names);

/// One setting somebody gave, checked for type and range.
struct ConfigSetting {
  const ConfigOption* option;
  std::string text;    ///< as set_option takes it
  std::string origin;  ///< for messages: "--lr" or "my.toml:3"
};

/// Parses flat TOML: `key = value` lines, comments, one level, keys in either spelling. Sections,
/// unknown keys, keys set twice and values of the wrong type or range are config errors that state
/// `name`, the line and the key.
std::vector<ConfigSetting> parse_config(std::string_view text, std::string_view name);
/// The same from a file; one that cannot be read is a config error.
std::vector<ConfigSetting> read_config(const std::filesystem::path& path);

/// Sets one after the other: later settings win.
void apply_settings(TrainConfig& config, std::span<const ConfigSetting> settings);

/// The configuration as flat TOML that parse_config reads back to equal values. Actions (resume,
/// overwrite, dry_run, how processes start) are left out.
std::string config_text(const TrainConfig& config);

/// docs/configuration.md.
std::string config_page();

}  // namespace llmc
