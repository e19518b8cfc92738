// Trains a model: docs/configuration.md lists the options.

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/signals.h"
#include "llmc/core/error.h"
#include "llmc/train/training_run.h"

namespace {

using llmc::cli::Work;

// `program` is how this one was called; the others lie beside it.
std::string first_steps(std::string program) {
  constexpr std::string_view kName = "train";
  if (program.ends_with(kName)) program.resize(program.size() - kName.size());
  return llmc::concat(
      "train: trains a GPT on token files. To try it, paste these lines:\n\n  ", program,
      "prepare --corpus tales --bytes 4000000 --seed 1 --val-tokens 100000 --out-dir data/tales"
      " --name tales\n  ",
      program, "train --config configs/quickstart.toml --out-dir runs/quickstart\n  ", program,
      "sample --checkpoint runs/quickstart --max-new-tokens 400\n\n"
      "Options: train --help, or docs/configuration.md.\n");
}

/// What a process holds while it trains; the run borrows from the ranks.
struct Process {
  std::shared_ptr<llmc::ProcessGroup> group;
  std::unique_ptr<llmc::Communicator> ranks;  ///< null: there is one
  std::optional<llmc::TrainingRun> run;
};

int train(Process& process) {
  llmc::TrainingRun& run = *process.run;
  // mpirun shows its processes a terminal even where what they print goes to a file.
  const bool live = isatty(STDOUT_FILENO) == 1 && process.group->size() == 1;
  llmc::cli::Console console(std::cout, live);
  if (process.group->rank() == 0) run.add_sink(console);
  const llmc::StopEvent stop = run.run(&llmc::cli::watch_signals());
  if (stop.reason == llmc::StopReason::kBadSteps) {
    if (process.group->rank() != 0) return llmc::cli::kFailed;  // rank 0 says why
    llmc::fail(llmc::ErrorKind::kInput, "run", "expected fewer than max_bad_steps (",
               run.config().max_bad_steps, ") skipped steps in a row, got that many up to step ",
               stop.step, "; checkpoints are from before them");
  }
  return stop.reason == llmc::StopReason::kSignal ? llmc::cli::kSignalled + stop.signal
                                                  : llmc::cli::kDone;
}

/// Opens the run as one of the processes that were started together.
Work open(const std::shared_ptr<Process>& process, std::span<const llmc::ConfigSetting> settings,
          std::string_view name) {
  const llmc::ProcessGroup& group = *process->group;
  llmc::RunPlan plan = llmc::plan_run(settings, name, group.size());
  if (plan.config.dry_run) {
    const std::string report = llmc::TrainingRun(std::move(plan)).report();
    if (group.rank() == 0) std::cout << report;
    return {};
  }
  const auto options = llmc::device_options(plan.config, llmc::cli::place_of(group));
  const auto device = llmc::Device::open(options);
  if (group.size() > 1) process->ranks = llmc::Communicator::open(device, process->group);
  process->run.emplace(device, std::move(plan), process->ranks.get());
  process->run->open();
  return [process] { return train(*process); };
}

Work prepare(int argc, char** argv) {
  std::string config_file;
  bool print_options = false;
  std::vector<llmc::ConfigSetting> given;
  llmc::cli::OptionParser parser("train", "Trains a GPT on token files.");
  parser.add("config", config_file, "Flat TOML file with any of the options below.");
  parser.add_flag("print-options", print_options, "Print docs/configuration.md.");
  parser.add_config_options(given);
  if (argc == 1) {
    std::cout << first_steps(argv[0]);
    return {};
  }
  if (!parser.parse(argc, argv)) return {};
  if (print_options) {
    std::cout << llmc::config_page();
    return {};
  }
  std::string name = "train";
  std::vector<llmc::ConfigSetting> settings;
  if (!config_file.empty()) {
    settings = llmc::read_config(config_file);
    name = std::filesystem::path(config_file).stem().string();
  }
  settings.insert(settings.end(), given.begin(), given.end());
  llmc::TrainConfig asked;
  llmc::apply_settings(asked, settings);
  const auto process = std::make_shared<Process>();
  process->group = llmc::cli::join("train", llmc::start_up_options(asked));
  llmc::cli::log_as_one("train", *process->group);
  return llmc::cli::or_give_up(*process->group, [&] { return open(process, settings, name); });
}

}  // namespace

int main(int argc, char** argv) {
  return llmc::cli::run_app("train", argv, [&] { return prepare(argc, argv); });
}
