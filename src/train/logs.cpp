#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/train/sinks.h"

namespace llmc {
namespace {

// Keeps the order of keys, and prints a float with the fewest digits that read back to it.
using Json = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool,
                                  std::int64_t, std::uint64_t, float>;

Json number_or_null(const std::optional<double>& value) {
  return value ? Json(static_cast<float>(*value)) : Json(nullptr);
}

Json to_json(const StartEvent& e) {
  return {{"event", "start"},
          {"step", e.first_step},
          {"total_steps", e.total_steps},
          {"parameters", e.parameters},
          {"flops_per_token", e.flops_per_token},
          {"micro_batch", e.micro_batch},
          {"seq_len", e.seq_len},
          {"micro_steps", e.micro_steps},
          {"tokens_per_step", e.tokens_per_step},
          {"train_tokens", e.train_tokens},
          {"val_tokens", e.val_tokens},
          {"val_entropy_bits_per_byte", number_or_null(e.val_entropy_bits_per_byte)},
          {"device", e.device},
          {"config", e.config}};
}

Json to_json(const StepEvent& e) {
  return {{"event", "step"},
          {"step", e.step},
          {"loss", e.loss},
          {"grad_norm", e.grad_norm},
          {"lr", e.lr},
          {"tokens", e.tokens},
          {"ms", e.ms},
          {"tokens_per_s", e.tokens_per_s},
          {"mfu", number_or_null(e.mfu)}};
}

Json to_json(const SkipEvent& e) {
  return {{"event", "skip"}, {"step", e.step},           {"reason", name_of(e.reason)},
          {"loss", e.loss},  {"grad_norm", e.grad_norm}, {"in_a_row", e.in_a_row}};
}

Json to_json(const ValEvent& e) {
  return {{"event", "val"},
          {"step", e.step},
          {"loss", e.loss},
          {"tokens", e.tokens},
          {"bits_per_byte", number_or_null(e.bits_per_byte)},
          {"ms", e.ms},
          {"best", e.best}};
}

Json to_json(const ChoicesEvent& e) {
  return {{"event", "choices"},
          {"step", e.step},
          {"examples", e.accuracy.examples},
          {"acc", number_or_null(e.accuracy.acc)},
          {"acc_norm", number_or_null(e.accuracy.acc_norm)},
          {"acc_token", number_or_null(e.accuracy.acc_token)},
          {"ms", e.ms}};
}

Json to_json(const SampleEvent& e) {
  return {{"event", "sample"}, {"step", e.step}, {"text", e.text}};
}

Json to_json(const CheckpointEvent& e) {
  return {{"event", "checkpoint"}, {"step", e.step}, {"path", e.path.string()}, {"ms", e.ms}};
}

Json to_json(const StopEvent& e) {
  return {{"event", "stop"},
          {"step", e.step},
          {"reason", name_of(e.reason)},
          {"seconds", e.seconds},
          {"val_loss", number_or_null(e.val_loss)},
          {"best_loss", number_or_null(e.best_loss)},
          {"best_step", e.best_step}};
}

[[noreturn]] void bad_line(const std::filesystem::path& path, std::int64_t number,
                           std::string_view expected, std::string_view line) {
  fail(ErrorKind::kInput, "log", path.string(), ":", number, ": expected ", expected, ", got '",
       line.substr(0, 60), "'; repair or remove the file");
}

// Calls visit(line, number) for each line that ends in a newline.
template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  std::int64_t number = 0;
  for (std::size_t end; (end = text.find('\n')) != std::string_view::npos;) {
    visit(text.substr(0, end), ++number);
    text.remove_prefix(end + 1);
  }
}

// Rewrites the file with the lines for which keep(line, number) holds.
template <class Keep>
void cut_log(const std::filesystem::path& path, Keep keep) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = read_text(path);
  std::string kept;
  for_each_line(text, [&](std::string_view line, std::int64_t number) {
    if (keep(line, number)) kept.append(line).append("\n");
  });
  if (kept != text) write_text(path, kept);
}

Json parse_line(const std::filesystem::path& path, std::string_view line, std::int64_t number) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("event") || !json["event"].is_string() ||
      !json.contains("step") || !json["step"].is_number_integer()) {
    bad_line(path, number, "an object with event and step", line);
  }
  return json;
}

}  // namespace

std::string json_line(const Event& event) {
  const Json json = std::visit([](const auto& e) { return to_json(e); }, event);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

SinkAction JsonLog::on_event(const Event& event) {
  if (const auto* step = std::get_if<StepEvent>(&event); step && !step->log) {
    return SinkAction::kContinue;
  }
  file_.append(json_line(event) + '\n');
  return SinkAction::kContinue;
}

SinkAction MainLog::on_event(const Event& event) {
  std::array<char, 128> line{};
  const auto print = [&](const char* format, auto... values) {
    std::snprintf(line.data(), line.size(), format, values...);
    file_.append(line.data());
  };
  if (const auto* step = std::get_if<StepEvent>(&event); step && step->log) {
    print("s:%lld trl:%.4f lr:%.6f norm:%.2f\n", static_cast<long long>(step->step - 1),
          static_cast<double>(step->loss), static_cast<double>(step->lr),
          static_cast<double>(step->grad_norm));
  } else if (const auto* val = std::get_if<ValEvent>(&event)) {
    print("s:%lld tel:%.4f\n", static_cast<long long>(val->step), val->loss);
  } else if (const auto* choices = std::get_if<ChoicesEvent>(&event)) {
    print("s:%lld eval:%.4f\n", static_cast<long long>(choices->step), choices->accuracy.acc_token);
  }
  return SinkAction::kContinue;
}

void cut_json_log(const std::filesystem::path& path, std::int64_t step) {
  cut_log(path, [&](std::string_view line, std::int64_t number) {
    return parse_line(path, line, number)["step"].get<std::int64_t>() <= step;
  });
}

void cut_main_log(const std::filesystem::path& path, std::int64_t step) {
  cut_log(path, [&](std::string_view line, std::int64_t number) {
    long long at = 0;
    char kind[5] = {};
    if (std::sscanf(std::string(line).c_str(), "s:%lld %4[a-z]:", &at, kind) != 2) {
      bad_line(path, number, "s:STEP NAME:VALUE", line);
    }
    return std::string_view(kind) == "trl" ? at < step : at <= step;
  });
}

LossCurves read_loss_curves(const std::filesystem::path& json_log) {
  LossCurves curves;
  for_each_line(read_text(json_log), [&](std::string_view line, std::int64_t number) {
    const Json json = parse_line(json_log, line, number);
    const std::string event = json["event"].get<std::string>();
    if (event != "step" && event != "val") return;
    const auto loss = json.find("loss");
    if (loss == json.end() || !loss->is_number()) return;
    auto& curve = event == "step" ? curves.train : curves.val;
    curve.push_back({json["step"].get<std::int64_t>(), loss->get<double>()});
  });
  return curves;
}

}  // namespace llmc
