#include "llmc/io/hf_model.h"

#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "fuzz/fuzz_file.h"
#include "io/weight_table.h"
#include "llmc/core/error.h"

namespace {

namespace fs = std::filesystem;

/// A folder in memory, of this process.
fs::path make_folder() {
  std::string name = fs::exists("/dev/shm") ? "/dev/shm/llmc_fuzz_XXXXXX" : "/tmp/llmc_fuzz_XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  static const std::string made = name;
  std::atexit([] {
    std::error_code ignored;
    fs::remove_all(made, ignored);
  });
  return made;
}

void put(const fs::path& path, const std::uint8_t* begin, const std::uint8_t* end) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || ::write(fd, begin, static_cast<std::size_t>(end - begin)) != end - begin) {
    std::abort();
  }
  ::close(fd);
}

}  // namespace

// The input is config.json, a zero byte, the index or nothing, a zero byte, and the file of
// tensors: a.safetensors where there is an index, else model.safetensors.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fs::path folder = make_folder();
  const std::uint8_t* const end = data + size;
  const auto after = [&](const std::uint8_t* zero) { return zero == end ? end : zero + 1; };
  const std::uint8_t* const config_end = std::find(data, end, 0);
  const std::uint8_t* const index = after(config_end);
  const std::uint8_t* const index_end = std::find(index, end, 0);
  const bool has_index = index != index_end;
  const fs::path whole = folder / "model.safetensors";
  ::unlink(whole.c_str());
  put(folder / "config.json", data, config_end);
  put(folder / "model.safetensors.index.json", index, index_end);
  put(has_index ? folder / "a.safetensors" : whole, after(index_end), end);
  try {
    llmc::HfModelReader reader(folder);
    std::vector<char> bytes;
    for (const llmc::WeightId& id : llmc::weights_by_layer(reader.config().n_layer)) {
      const llmc::StoredWeight weight =
          reader.weight(id.kind->full_name(id.layer), llmc::DType::kF32);
      bytes.resize(static_cast<std::size_t>(weight.shape.numel()) * llmc::size_of(weight.dtype));
      weight.read(0, weight.shape.numel(), bytes.data());
    }
  } catch (const llmc::Error&) {
  }
  return 0;
}
