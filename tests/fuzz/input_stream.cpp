// A file's bytes, or those of the gzip members it holds, whatever the sizes of the reads.
#include "core/input_stream.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fuzz/fuzz_file.h"
#include "llmc/core/error.h"

namespace {

constexpr std::size_t kMostText = std::size_t{1} << 20;

/// The text, or the error after !.
std::string read_all(const llmc::testing::FuzzFile& file, std::size_t at_a_time) {
  std::string text;
  try {
    llmc::InputStream stream(file.path());
    std::string part(at_a_time, '\0');
    while (text.size() < kMostText) {
      const std::size_t got = stream.read_some(part.data(), part.size());
      if (got == 0) break;
      text.append(part, 0, got);
    }
  } catch (const llmc::Error& error) {
    return std::string("!") + error.what();
  }
  return text.substr(0, std::min(text.size(), kMostText));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const llmc::testing::FuzzFile file(data, size);
  if (read_all(file, 7) != read_all(file, 5000)) std::abort();
  return 0;
}
