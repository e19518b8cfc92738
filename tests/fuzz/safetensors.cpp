#include "llmc/io/safetensors.h"

#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const llmc::testing::FuzzFile file(data, size);
  try {
    llmc::SafetensorsReader reader(file.path());
    for (const llmc::SafetensorsEntry& entry : reader.entries()) {
      std::vector<char> bytes(static_cast<std::size_t>(entry.bytes));
      reader.read(entry, 0, entry.numel(), bytes.data());
    }
  } catch (const llmc::Error&) {
  }
  return 0;
}
