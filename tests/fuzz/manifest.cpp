#include "io/manifest.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "llmc/core/checksum.h"
#include "llmc/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  // With the checksum that the rest has, so that inputs get past its test.
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (value.is_object()) {
    try {
      value.erase("manifest_checksum");
      const std::string rest = value.dump();
      char digits[17];
      std::snprintf(digits, sizeof digits, "%016llx",
                    static_cast<unsigned long long>(llmc::checksum64(rest.data(), rest.size())));
      value["manifest_checksum"] = digits;
      text = value.dump();
    } catch (const nlohmann::json::exception&) {
      return 0;
    }
  }
  try {
    llmc::to_json(llmc::manifest_from_json(text, "fuzz"));
  } catch (const llmc::Error&) {
  }
  return 0;
}
