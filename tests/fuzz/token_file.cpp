#include "llmc/data/token_file.h"

#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const llmc::testing::FuzzFile input(data, size);
  try {
    llmc::TokenFile file(input.path(), 1000);
    std::vector<std::int32_t> window(static_cast<std::size_t>(file.size()));
    file.read(window, 0);
    for (const std::int32_t id : window) {
      if (id < 0 || id >= 1000) std::abort();
    }
  } catch (const llmc::Error&) {
  }
  return 0;
}
