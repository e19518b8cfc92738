#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "llmc/data/tokenizer.h"
#include "llmc/io/model_loader.h"
#include "llmc/nn/transformer.h"
#include "llmc/train/train_config.h"
#include "llmc/train/training_run.h"

namespace llmc::cli {

/// A trained model that an app works with: the options that say which and how, and the model.
class ModelSource {
 public:
  /// --checkpoint, which must be given, --tokenizer, --precision, and train's options of the
  /// device.
  void add_options(OptionParser& parser);

  /// After parsing: opens the checkpoint and its tokenizer, and checks all options.
  void open();
  const ModelLoader& loader() const { return *loader_; }
  /// Null if the model comes without one and none was given.
  const std::shared_ptr<Tokenizer>& tokenizer() const { return tokenizer_; }
  /// Throws a config error without one; `why`: what it is needed for.
  const Tokenizer& need_tokenizer(const std::string& why) const;

  /// The model with its weights, planned for `rows` sequences of `seq_len` tokens at a time (0: its
  /// block_size) and no training. place: of this process among those that share the work.
  std::shared_ptr<Transformer> load(std::int64_t rows, std::int64_t seq_len,
                                    const RankPlace& place = {});

 private:
  std::string checkpoint_;
  std::string tokenizer_name_;
  std::string precision_;
  std::vector<ConfigSetting> settings_;
  TrainConfig config_;
  std::optional<ModelLoader> loader_;
  std::shared_ptr<Tokenizer> tokenizer_;
};

}  // namespace llmc::cli
