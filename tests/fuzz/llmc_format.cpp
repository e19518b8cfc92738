#include "llmc/io/llmc_format.h"

#include <vector>

#include "fuzz/fuzz_file.h"
#include "io/weight_table.h"
#include "llmc/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const llmc::ModelConfig config = llmc::ModelConfig::gpt2(1, 1, 1, 2, 3);
  const llmc::testing::FuzzFile file(data, size);
  try {
    if (llmc::LlmcModelReader::recognises(file.path())) {
      llmc::LlmcModelReader reader(file.path());
      reader.config().validate();
      std::vector<char> bytes;
      for (const llmc::WeightId& id : llmc::weights_by_kind(reader.config().n_layer)) {
        const auto weight = reader.weight(id.kind->full_name(id.layer), llmc::DType::kF32);
        bytes.resize(static_cast<std::size_t>(weight.shape.numel()) * llmc::size_of(weight.dtype));
        weight.read(0, weight.shape.numel(), bytes.data());
      }
    } else {
      llmc::read_llmc_debug_state(file.path(), config);
    }
  } catch (const llmc::Error&) {
  }
  return 0;
}
