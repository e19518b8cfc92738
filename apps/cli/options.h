#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/train/train_config.h"

namespace llmc::cli {

/// The command line of an app. Options are `--micro-batch VALUE` or `--micro-batch=VALUE`, hyphens
/// and underscores being the same. Every mistake is a config error that names the option: an
/// unknown name (with the nearest one), a missing value, one given twice, or a value of the wrong
/// type or range. The variables must outlive the parser and keep their values, the defaults, where
/// an option is not given.
class OptionParser {
 public:
  OptionParser(std::string program, std::string description);
  ~OptionParser();
  OptionParser(const OptionParser&) = delete;
  OptionParser& operator=(const OptionParser&) = delete;

  /// Text, an integer or a number in a range. `name` has hyphens and no dashes in front.
  void add(std::string name, std::string& value, std::string help);
  void add(std::string name, std::int64_t& value, std::string help, ConfigRange range);
  void add(std::string name, double& value, std::string help, ConfigRange range);
  /// One of `choices`.
  void add(std::string name, std::string& value, std::string help,
           std::vector<std::string_view> choices);
  /// True when given.
  void add_flag(std::string name, bool& value, std::string help);
  /// One or more values.
  void add_list(std::string name, std::vector<std::string>& values, std::string help);
  /// Every option of the table, or those with these keys; what is given is appended to `settings`.
  void add_config_options(std::vector<ConfigSetting>& settings,
                          std::initializer_list<std::string_view> keys = {});
  /// The same for these keys, set in `config`, whose values are the defaults.
  void add_config_options(TrainConfig& config, std::initializer_list<std::string_view> keys);
  /// An option that must be given.
  void require(std::string_view name);

  /// False when --help or --version was given and answered on stdout.
  bool parse(int argc, const char* const* argv);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc::cli
