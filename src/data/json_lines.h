#pragma once

#include <string>
#include <string_view>

namespace llmc {

/// Finds the text under `field` at the top level of one JSON object and appends it, unescaped, to
/// `out`. Of several with the same name the last counts. Returns true; or false with a reason in
/// `error`, which reads "expected …, got …", if the line is no JSON object (RFC 8259) or has no
/// text there. Bytes that are not valid UTF-8 pass as they are; half of a surrogate pair becomes
/// U+FFFD.
bool extract_json_text(std::string& out, std::string& error, std::string_view line,
                       std::string_view field);

}  // namespace llmc
