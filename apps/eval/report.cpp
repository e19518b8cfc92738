#include "eval/report.h"

#include <cmath>
#include <cstdio>

#include "llmc/core/error.h"

namespace llmc::cli {
namespace {

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// JSON has no numbers that are not finite.
std::string json_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? number("%.9g", *value) : "null";
}

std::string known(const std::optional<double>& value) {
  return value ? number("%.4f", *value) : "n/a";
}

std::string json_members(const TextReport& report) {
  return concat("\"tokens\":", report.evaluation.counted_tokens,
                ",\"loss\":", json_number(report.evaluation.mean_loss()),
                ",\"perplexity\":", json_number(report.evaluation.perplexity()),
                ",\"bits_per_byte\":", json_number(report.bits_per_byte),
                ",\"entropy_bits_per_byte\":", json_number(report.entropy_bits_per_byte));
}

std::string table(const TextReport& report) {
  const Evaluation& e = report.evaluation;
  std::string text =
      concat("tokens         ", e.counted_tokens, "\nloss           ",
             number("%.6f", e.mean_loss()), "\nperplexity     ", number("%.4f", e.perplexity()),
             "\nbits per byte  ", known(report.bits_per_byte), "\n");
  if (report.entropy_bits_per_byte) {
    text += concat("data's entropy ", known(report.entropy_bits_per_byte), "\n");
  }
  return text;
}

std::string ending(std::int32_t number) {
  return number < 0 ? "null" : std::to_string(number);
}

}  // namespace

std::string json_text(const Report& report) {
  std::string text;
  const auto add = [&text](const std::string& part) {
    text += concat(text.empty() ? "" : ",", part);
  };
  if (report.data) add(json_members(*report.data));
  if (report.text) add(concat("\"text\":{", json_members(*report.text), "}"));
  if (report.choices) {
    const ChoiceAccuracy& a = report.choices->accuracy;
    add(concat("\"choices\":{\"examples\":", a.examples, ",\"acc\":", json_number(a.acc),
               ",\"acc_norm\":", json_number(a.acc_norm),
               ",\"acc_token\":", json_number(a.acc_token),
               ",\"seconds\":", json_number(report.choices->seconds), "}"));
  }
  return concat("{", text, "}\n");
}

std::string table_text(const Report& report) {
  std::string text;
  if (report.data) text += table(*report.data);
  if (report.text) text += table(*report.text);
  if (report.choices) {
    const ChoiceAccuracy& a = report.choices->accuracy;
    text += concat("examples       ", a.examples, "\nacc            ", number("%.4f", a.acc),
                   "\nacc_norm       ", known(a.acc_norm), "\nacc_token      ",
                   number("%.4f", a.acc_token), "\nexamples/s     ",
                   number("%.1f", static_cast<double>(a.examples) / report.choices->seconds), "\n");
  }
  return text;
}

std::string prediction_lines(std::span<const ChoiceExample> examples,
                             std::span<const ChoicePrediction> predictions) {
  std::string text;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    const ChoicePrediction& p = predictions[i];
    text += concat("{\"example\":", i, ",\"label\":", examples[i].label,
                   ",\"acc\":", ending(p.by_sum), ",\"acc_norm\":", ending(p.by_character),
                   ",\"acc_token\":", ending(p.by_token), "}\n");
  }
  return text;
}

}  // namespace llmc::cli
