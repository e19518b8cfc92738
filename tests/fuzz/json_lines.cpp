// What is read from a line of JSON is what the JSON library reads.
#include "data/json_lines.h"

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using Json = nlohmann::json;

/// True where the two may differ: bytes that are not UTF-8, halves of surrogate pairs, numbers too
/// large for a double, and very deep nesting. The library refuses all but the last.
bool differs(std::string_view line) {
  for (const char c : line) {
    if (static_cast<unsigned char>(c) >= 0x80) return true;
  }
  return line.find("\\u") != line.npos || line.find_first_of("eE.") != line.npos ||
         line.size() > 300;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  std::string text = "kept", error;
  const bool found = llmc::extract_json_text(text, error, line, "t");
  if (!text.starts_with("kept") || found != error.empty()) std::abort();

  // The library takes a zero byte for the end.
  if (line.find('\0') != line.npos) return 0;
  const Json json = Json::parse(line, nullptr, false);
  const bool wanted = json.is_object() && json.contains("t") && json["t"].is_string();
  if (wanted && line.size() < 1000) {
    if (!found || text.substr(4) != json["t"].get<std::string>()) std::abort();
  }
  if (found && !wanted && !differs(line)) std::abort();
  return 0;
}
