#pragma once

#include <optional>
#include <span>
#include <string>

#include "llmc/data/choices.h"
#include "llmc/infer/evaluator.h"

namespace llmc::cli {

struct TextReport {
  Evaluation evaluation;
  std::optional<double> bits_per_byte;          ///< where the bytes of the tokens are known
  std::optional<double> entropy_bits_per_byte;  ///< of the data, where that is known
};

struct ChoiceReport {
  ChoiceAccuracy accuracy;
  double seconds = 0;
};

/// What `eval` measured.
struct Report {
  std::optional<TextReport> data;
  std::optional<TextReport> text;
  std::optional<ChoiceReport> choices;
};

/// One JSON object: the members of `data`, and of `text` and `choices` under these names. What is
/// unknown or not finite is null.
std::string json_text(const Report& report);
/// The same for people.
std::string table_text(const Report& report);

/// A JSON object a line and example: its number, label and the ending taken by each rule.
std::string prediction_lines(std::span<const ChoiceExample> examples,
                             std::span<const ChoicePrediction> predictions);

}  // namespace llmc::cli
