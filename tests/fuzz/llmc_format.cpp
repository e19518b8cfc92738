#include "llmc/io/llmc_format.h"

#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const llmc::ModelConfig config = llmc::ModelConfig::gpt2(1, 1, 1, 2, 3);
  const llmc::testing::FuzzFile file(data, size);
  try {
    if (llmc::LlmcModelReader::recognises(file.path())) {
      const llmc::LlmcModelReader reader(file.path());
      reader.config().validate();
    } else {
      llmc::read_llmc_debug_state(file.path(), config);
    }
  } catch (const llmc::Error&) {
  }
  return 0;
}
