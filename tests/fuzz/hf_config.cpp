#include "io/hf_config.h"

#include <cstdlib>

#include "llmc/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const llmc::ModelConfig config = llmc::model_from_hf_config(text, "fuzz");
    config.validate();
    const std::string written = llmc::hf_config_text(config, llmc::DType::kF32, {});
    if (llmc::model_from_hf_config(written, "again") != config) std::abort();
  } catch (const llmc::Error& error) {
    if (error.kind() != llmc::ErrorKind::kInput) std::abort();
  }
  return 0;
}
