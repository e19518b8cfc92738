#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "cli/options.h"
#include "llmc/core/device.h"
#include "llmc/core/dtype.h"
#include "llmc/train/train_config.h"
#include "llmc/train/training_run.h"

namespace llmc::bench {

/// What train_step and decode are both told: which model, in which precision, on which device, and
/// how the result is printed.
struct ModelOptions {
  TrainConfig config;
  std::string tuning_cache;
  bool no_tuning = false;
  bool json = false;

  /// GPT-2 124M in bf16.
  ModelOptions();
  /// Declares them, and the options of train with the keys `more`, which are set in `config` too.
  void add_to(cli::OptionParser& parser, std::initializer_list<std::string_view> more);

  DType dtype() const { return config.precision == "bf16" ? DType::kBF16 : DType::kF32; }
  bool tf32() const { return config.precision == "tf32"; }
  /// place: of this process among those that share the work.
  DeviceOptions device_options(const RankPlace& place = {}) const;
};

}  // namespace llmc::bench
