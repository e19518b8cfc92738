#include "llmc/train/train_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string>

#include "llmc/core/error.h"

namespace llmc {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above + 1, row[j - 1] + 1, change});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string number_text(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

template <class T>
bool parse_whole(std::string_view text, T& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// TOML allows single underscores between digits.
std::string without_digit_groups(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (text[i] == '_' && i > 0 && digit(i - 1) && digit(i + 1)) continue;
    out += text[i];
  }
  return out;
}

void set_value(TrainConfig& config, bool TrainConfig::*member, const ConfigOption& option,
               std::string_view text) {
  if (text != "true" && text != "false") {
    fail(ErrorKind::kConfig, "config", option.key, ": expected true or false, got '", text, "'");
  }
  config.*member = text == "true";
}

void set_value(TrainConfig& config, std::int64_t TrainConfig::*member, const ConfigOption& option,
               std::string_view text) {
  std::int64_t value = 0;
  if (!parse_whole(without_digit_groups(text), value)) {
    fail(ErrorKind::kConfig, "config", option.key, ": expected an integer, got '", text, "'");
  }
  check_range(option.key, option.range, static_cast<double>(value), text);
  config.*member = value;
}

void set_value(TrainConfig& config, double TrainConfig::*member, const ConfigOption& option,
               std::string_view text) {
  double value = 0;
  if (!parse_whole(without_digit_groups(text), value) || !std::isfinite(value)) {
    fail(ErrorKind::kConfig, "config", option.key, ": expected a number, got '", text, "'");
  }
  check_range(option.key, option.range, value, text);
  config.*member = value;
}

void set_value(TrainConfig& config, std::string TrainConfig::*member, const ConfigOption& option,
               std::string_view text) {
  const auto& choices = option.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    std::string list;
    for (std::string_view choice : choices) list += concat(list.empty() ? "" : ", ", choice);
    fail(ErrorKind::kConfig, "config", option.key, ": expected ",
         choices.size() > 1 ? "one of " : "", list, ", got '", text, "'");
  }
  config.*member = text;
}

std::string value_text(bool value) {
  return value ? "true" : "false";
}
std::string value_text(std::int64_t value) {
  return std::to_string(value);
}
std::string value_text(double value) {
  return number_text(value);
}
std::string value_text(const std::string& value) {
  return value;
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> names) {
  std::string nearest;
  std::size_t distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const std::size_t d = edit_distance(name, candidate);
    if (d < distance) {
      distance = d;
      nearest = candidate;
    }
  }
  return nearest;
}

const ConfigOption& find_option(std::string_view key) {
  std::string underscored(key);
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  std::vector<std::string> keys;
  for (const ConfigOption& option : config_options()) {
    if (option.key == underscored) return option;
    keys.emplace_back(option.key);
  }
  const std::string nearest = nearest_name(underscored, keys);
  const std::string hint = nearest.empty() ? std::string("docs/configuration.md lists them all")
                                           : concat("did you mean ", nearest, "?");
  fail(ErrorKind::kConfig, "config", "expected the name of an option, got '", key, "'; ", hint);
}

void set_option(TrainConfig& config, const ConfigOption& option, std::string_view text) {
  std::visit([&](auto member) { set_value(config, member, option, text); }, option.member);
}

std::string option_text(const TrainConfig& config, const ConfigOption& option) {
  return std::visit([&](auto member) { return value_text(config.*member); }, option.member);
}

std::string_view type_name(const ConfigOption& option) {
  constexpr std::string_view kNames[] = {"true or false", "integer", "number", "text"};
  return kNames[option.member.index()];
}

void apply_settings(TrainConfig& config, std::span<const ConfigSetting> settings) {
  for (const ConfigSetting& setting : settings) set_option(config, *setting.option, setting.text);
}

std::string range_text(const ConfigRange& range) {
  if (range.max == range.min) return {};
  const std::string min = concat(range.open_min ? "above " : "at least ", number_text(range.min));
  if (range.max >= ConfigRange::kUnbounded) return min;
  return concat(min, " and ", range.open_max ? "below " : "at most ", number_text(range.max));
}

void check_range(std::string_view name, const ConfigRange& range, double value,
                 std::string_view text) {
  const bool low = range.open_min ? value <= range.min : value < range.min;
  const bool high = range.open_max ? value >= range.max : value > range.max;
  if (high && range.max >= ConfigRange::kUnbounded) {
    fail(ErrorKind::kConfig, "config", name, ": expected a value of at most ",
         number_text(range.max), ", got ", text);
  }
  if (low || high || std::isnan(value)) {
    fail(ErrorKind::kConfig, "config", name, ": expected a value ", range_text(range), ", got ",
         text);
  }
}

}  // namespace llmc
