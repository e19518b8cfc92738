#include "cli/model.h"

#include "llmc/core/error.h"
#include "llmc/train/run_folder.h"

namespace llmc::cli {

void ModelSource::add_options(OptionParser& parser) {
  parser.add("checkpoint", checkpoint_,
             "Run folder (its newest checkpoint), checkpoint, Hugging Face folder or llm.c model "
             "file.");
  parser.add("tokenizer", tokenizer_name_,
             "For models without one: byte, or a tokenizer's folder or file.");
  parser.add("precision", precision_,
             "fp32, bf16, or tf32: fp32 whose matrix products round their inputs to 10 bits, on "
             "GPUs. Default: as the weights are stored.");
  parser.add_config_options(settings_, {"device", "threads", "isa", "attention", "tune_matmul"});
  parser.require("checkpoint");
}

void ModelSource::open() {
  apply_settings(config_, settings_);
  loader_.emplace(checkpoint_);
  if (precision_.empty()) {
    config_.precision = loader_->dtype() == DType::kBF16 ? "bf16" : "fp32";
  } else {
    set_option(config_, find_option("precision"), precision_);
  }
  tokenizer_ = load_model_tokenizer(*loader_, tokenizer_name_);
}

const Tokenizer& ModelSource::need_tokenizer(const std::string& why) const {
  if (!tokenizer_) {
    fail(ErrorKind::kConfig, "options", "--tokenizer: expected one for ", why, ", as ",
         loader_->source().string(), " comes without",
         loader_->checkpoint() ? "; a run keeps its own in RUN/tokenizer" : "");
  }
  return *tokenizer_;
}

std::shared_ptr<Transformer> ModelSource::load(std::int64_t rows, std::int64_t seq_len,
                                               const RankPlace& place) {
  const Device device = Device::open(device_options(config_, place));
  TransformerOptions options;
  options.micro_batch = rows;
  options.seq_len = seq_len;
  options.dtype = config_.precision == "bf16" ? DType::kBF16 : DType::kF32;
  options.tf32 = config_.precision == "tf32";
  options.training = false;
  auto model = std::make_shared<Transformer>(device, loader_->config(), options);
  model->allocate();
  loader_->read_weights(model->stream(), model->parameters());
  return model;
}

}  // namespace llmc::cli
