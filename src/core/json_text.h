#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace llmc {

/// More levels than any file has that is read here. Printing and comparing values recurs, so that
/// deeper ones could exhaust the stack.
constexpr int kMaxJsonLevels = 64;

/// The text as JSON; a discarded value where it is none, or has more than kMaxJsonLevels.
nlohmann::json parse_json(std::string_view text);

}  // namespace llmc
