#include "llmc/data/dataset_info.h"

#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const llmc::testing::FuzzFile file(data, size);
  try {
    llmc::read_dataset_info(file.path());
  } catch (const llmc::Error&) {
  }
  return 0;
}
