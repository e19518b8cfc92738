#include "bench/model_options.h"

namespace llmc::bench {

ModelOptions::ModelOptions() {
  config.model = "gpt2-124M";
  config.precision = "bf16";
}

void ModelOptions::add_to(cli::OptionParser& parser, std::initializer_list<std::string_view> more) {
  parser.add_config_options(config, {"model", "n_layer", "n_head", "n_embd", "vocab_size",
                                     "block_size", "precision", "threads", "isa", "attention"});
  parser.add_config_options(config, more);
  parser.add("tuning-cache", tuning_cache,
             "GPU: file that remembers the timed choices of matrix products. Empty: none.");
  parser.add_flag("no-tuning", no_tuning, "GPU: take the vendor library's choices.");
  parser.add_flag("json", json, "End with a line of JSON.");
}

DeviceOptions ModelOptions::device_options(const RankPlace& place) const {
  DeviceOptions options = llmc::device_options(config, place);
  options.tune_matmul = !no_tuning;
  options.tuning_cache = tuning_cache;
  return options;
}

}  // namespace llmc::bench
