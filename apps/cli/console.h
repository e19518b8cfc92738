#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

#include "llmc/train/events.h"

namespace llmc::cli {

/// Prints a run for people: a block at the start, a line per logged step and validation, a block
/// per sample. On a terminal a progress line stays below what has been printed.
class Console : public EventSink {
 public:
  /// live: `out` is a terminal, so the progress line may be redrawn in place.
  Console(std::ostream& out, bool live) : out_(out), live_(live) {}
  ~Console() override;
  SinkAction on_event(const Event& event) override;

 private:
  void show(const StartEvent& event);
  void show(const StepEvent& event);
  void show(const SkipEvent& event);
  void show(const ValEvent& event);
  void show(const ChoicesEvent& event);
  void show(const SampleEvent& event);
  void show(const CheckpointEvent& event);
  void show(const StopEvent& event);
  std::string step_column(std::int64_t step) const;
  void line(std::string_view text);
  void erase_progress();
  void draw_progress(const StepEvent& event);

  std::ostream& out_;
  bool live_;
  bool progress_shown_ = false;
  std::chrono::steady_clock::time_point drawn_{};
  std::int64_t total_steps_ = 0;
  std::optional<double> entropy_;
};

/// "1,234,567".
std::string with_commas(std::int64_t number);
/// "41 s", "2 min 05 s", "3 h 07 min".
std::string duration(double seconds);

}  // namespace llmc::cli
