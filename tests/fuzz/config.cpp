#include <cstdlib>

#include "llmc/core/error.h"
#include "llmc/train/train_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    llmc::TrainConfig config, again;
    llmc::apply_settings(config, llmc::parse_config(text, "fuzz.toml"));
    const std::string written = llmc::config_text(config);
    llmc::apply_settings(again, llmc::parse_config(written, "again.toml"));
    if (llmc::config_text(again) != written) std::abort();
  } catch (const llmc::Error&) {
  }
  return 0;
}
