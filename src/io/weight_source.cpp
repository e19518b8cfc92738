#include "llmc/io/weight_source.h"

#include "io/tensor_stream.h"
#include "llmc/core/error.h"

namespace llmc {

void WeightSource::read_weights(Stream& stream, const ParameterSet& parameters) {
  if (parameters.table().size() != weight_count()) {
    fail(ErrorKind::kInput, "weights", path().string(), ": expected ", parameters.table().size(),
         " weights, got ", weight_count(), "; the model is another one");
  }
  for (ParameterSet::Id id = 0; id < parameters.table().size(); ++id) {
    const std::string& name = parameters.table()[id].name;
    const Tensor value = parameters.value(id);
    const StoredWeight stored = weight(name, parameters.dtype());
    if (stored.shape != value.shape()) {
      fail(ErrorKind::kInput, "weights", path().string(), ": tensor '", name, "': expected shape ",
           value.shape(), ", got ", stored.shape);
    }
    load_tensor(stream, value, stored.dtype, stored.read);
  }
}

StoredWeight ModelWeights::weight(const std::string& name, DType /*wanted*/) {
  const Tensor value = parameters_.value(name);
  return {value.dtype(), value.shape(),
          [this, value](std::int64_t begin, std::int64_t count, void* out) {
            copy_to_host(stream_, out, value.flat(begin, count));
          }};
}

}  // namespace llmc
