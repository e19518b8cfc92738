#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/train/events.h"
#include "llmc/train/log_file.h"

namespace llmc {

/// `log.jsonl`: one JSON object a line and event (docs/formats.md); steps that are not to be logged
/// are left out, numbers that are not finite are null. Appends to a file that is there.
class JsonLog : public EventSink {
 public:
  explicit JsonLog(const std::filesystem::path& path) : file_(path) {}
  SinkAction on_event(const Event& event) override;

 private:
  LogFile file_;
};

/// The line of log.jsonl for an event, without the newline.
std::string json_line(const Event& event);

/// `main.log` in llm.c's format: training and validation losses and the accuracy at multiple
/// choice (acc_token, which is what llm.c measures), with steps counted from 0. Appends to a file
/// that is there.
class MainLog : public EventSink {
 public:
  explicit MainLog(const std::filesystem::path& path) : file_(path) {}
  SinkAction on_event(const Event& event) override;

 private:
  LogFile file_;
};

/// Cuts a log back to what was known when `step` steps were finished, and drops a last line that
/// was not written whole. A log that is not there stays so; a line that cannot be read is an input
/// error.
void cut_json_log(const std::filesystem::path& path, std::int64_t step);
void cut_main_log(const std::filesystem::path& path, std::int64_t step);

/// A loss and the step it belongs to.
struct LossPoint {
  std::int64_t step;
  double loss;
};

/// The curves of a run.
struct LossCurves {
  std::vector<LossPoint> train;
  std::vector<LossPoint> val;
};

/// Reads the curves from log.jsonl; steps whose loss is not finite are left out.
LossCurves read_loss_curves(const std::filesystem::path& json_log);

/// A picture of the curves with linear axes.
std::string loss_svg(const LossCurves& curves, std::string_view title);

/// Draws `loss.svg` from `log.jsonl` when the run ends.
class LossPlot : public EventSink {
 public:
  explicit LossPlot(std::filesystem::path run_folder) : folder_(std::move(run_folder)) {}
  SinkAction on_event(const Event& event) override;

 private:
  std::filesystem::path folder_;
};

}  // namespace llmc
