#include "cli/console.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "llmc/core/error.h"

namespace llmc::cli {
namespace {

template <class... Values>
std::string print(const char* format, Values... values) {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, format, values...);
  return buffer;
}

std::string mfu_text(const std::optional<double>& mfu) {
  return mfu ? print("%.1f%%", 100 * *mfu) : "n/a";
}

}  // namespace

std::string with_commas(std::int64_t number) {
  const std::string digits = std::to_string(number < 0 ? -number : number);
  std::string text = number < 0 ? "-" : "";
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string duration(double seconds) {
  const auto whole = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  if (whole < 60) return print("%lld s", whole);
  if (whole < 3600) return print("%lld min %02lld s", whole / 60, whole % 60);
  return print("%lld h %02lld min", whole / 3600, whole / 60 % 60);
}

Console::~Console() {
  erase_progress();
}

SinkAction Console::on_event(const Event& event) {
  std::visit([this](const auto& e) { show(e); }, event);
  out_.flush();
  if (!out_) fail(ErrorKind::kIo, "console", "cannot write to the output");
  return SinkAction::kContinue;
}

std::string Console::step_column(std::int64_t step) const {
  const std::string total = std::to_string(total_steps_);
  return print("step %*lld/%s", static_cast<int>(total.size()), static_cast<long long>(step),
               total.c_str());
}

void Console::line(std::string_view text) {
  erase_progress();
  out_ << text << '\n';
}

void Console::erase_progress() {
  if (progress_shown_) out_ << "\r\x1b[K" << std::flush;
  progress_shown_ = false;
}

void Console::draw_progress(const StepEvent& event) {
  const auto now = std::chrono::steady_clock::now();
  if (!live_ || (!event.log && now - drawn_ < std::chrono::milliseconds(100))) return;
  drawn_ = now;
  erase_progress();
  constexpr int kCells = 24;
  const double done = static_cast<double>(event.step) /
                      static_cast<double>(std::max<std::int64_t>(1, total_steps_));
  const int filled = std::clamp(static_cast<int>(done * kCells), 0, kCells);
  out_ << '[' << std::string(filled, '#') << std::string(kCells - filled, '.') << "] "
       << print("%3.0f%%  loss %.4f  ", 100 * done, static_cast<double>(event.loss))
       << with_commas(std::llround(event.tokens_per_s)) << " tok/s  "
       << duration(event.seconds_left) << " left";
  progress_shown_ = true;
}

void Console::show(const StartEvent& event) {
  total_steps_ = event.total_steps;
  entropy_ = event.val_entropy_bits_per_byte;
  line(concat("model       ", with_commas(event.parameters), " parameters, ",
              print("%.3g", event.flops_per_token), " FLOPs per token"));
  line(concat("device      ", event.device));
  line(concat("step        ", event.micro_batch,
              event.micro_batch == 1 ? " sequence × " : " sequences × ", event.seq_len,
              " tokens × ", event.micro_steps,
              event.micro_steps == 1 ? " micro-step = " : " micro-steps = ",
              with_commas(event.tokens_per_step), " tokens"));
  if (event.train_tokens > 0) {
    line(concat("training    ", with_commas(event.train_tokens), " tokens an epoch"));
  }
  if (event.val_tokens > 0) line(concat("validation  ", with_commas(event.val_tokens), " tokens"));
  if (entropy_) {
    line(concat("entropy     ", print("%.4f", *entropy_),
                " bits per byte: the data's own, which no model can beat"));
  }
  if (!event.out_dir.empty()) line(concat("run         ", event.out_dir));
  if (event.first_step > 0) {
    line(concat("resumed     after step ", event.first_step));
  }
}

void Console::show(const StepEvent& event) {
  if (event.log) {
    line(concat(
        step_column(event.step),
        print(" | loss %.6f | norm %7.4f | lr %.2e | %8.2f ms | ", static_cast<double>(event.loss),
              static_cast<double>(event.grad_norm), static_cast<double>(event.lr), event.ms),
        with_commas(std::llround(event.tokens_per_s)), " tok/s | MFU ", mfu_text(event.mfu), " | ",
        duration(event.seconds_left), " left"));
  }
  draw_progress(event);
}

void Console::show(const SkipEvent& event) {
  line(concat(step_column(event.step), " | skipped: ", name_of(event.reason),
              print(" (loss %.6g, norm %.6g, %lld in a row)", static_cast<double>(event.loss),
                    static_cast<double>(event.grad_norm), static_cast<long long>(event.in_a_row))));
}

void Console::show(const ValEvent& event) {
  std::string text = concat(step_column(event.step), print(" | val loss %.6f", event.loss));
  if (event.bits_per_byte) {
    text += print(" | %.4f bits per byte", *event.bits_per_byte);
    if (entropy_) text += print(" (entropy %.4f)", *entropy_);
  }
  text += print(" | %.0f ms", event.ms);
  line(event.best ? text + " | best so far" : text);
}

void Console::show(const ChoicesEvent& event) {
  const ChoiceAccuracy& a = event.accuracy;
  line(concat(step_column(event.step), print(" | choices acc %.4f", a.acc),
              a.acc_norm ? print(" | acc_norm %.4f", *a.acc_norm) : "",
              print(" | acc_token %.4f | ", a.acc_token), with_commas(a.examples), " examples",
              print(" | %.0f ms", event.ms)));
}

void Console::show(const SampleEvent& event) {
  line(concat("--- sample after step ", event.step, " ---"));
  // A model may draw any byte; a terminal must not take them for commands.
  std::string text = event.text;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  line(text);
  line("---");
}

void Console::show(const CheckpointEvent& event) {
  line(concat(step_column(event.step), " | checkpoint ", event.path.string(),
              print(" | copied in %.0f ms, being written", event.ms)));
}

void Console::show(const StopEvent& event) {
  std::string text = concat("stopped after step ", event.step, " (", name_of(event.reason), "), ",
                            duration(event.seconds));
  if (event.best_loss) {
    text += print("; lowest val loss %.6f after step %lld", *event.best_loss,
                  static_cast<long long>(event.best_step));
  }
  line(text);
}

}  // namespace llmc::cli
