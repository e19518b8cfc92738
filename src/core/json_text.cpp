#include "core/json_text.h"

namespace llmc {

nlohmann::json parse_json(std::string_view text) {
  using nlohmann::json;
  bool too_deep = false;
  const auto keep = [&](int depth, json::parse_event_t, const json&) {
    too_deep |= depth > kMaxJsonLevels;
    return !too_deep;
  };
  json value = json::parse(text, keep, /*allow_exceptions=*/false);
  return too_deep ? json(json::value_t::discarded) : value;
}

}  // namespace llmc
