// Hugging Face folders: those that `transformers` wrote, and our own
// (python_ref/write_hf_golden.py).

#include "llmc/io/hf_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tiny_run.h"
#include "io/weight_table.h"
#include "llmc/core/error.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/llmc_format.h"
#include "llmc/io/model_loader.h"
#include "llmc/io/safetensors.h"
#include "support/temp_folder.h"
#include "support/tolerance.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::TinyRun;

const fs::path kGolden = fs::path(LLMC_GOLDEN_DIR) / "hf";

/// Content by name, of all files in a folder.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_text(entry.path());
  }
  return files;
}

std::vector<float> logits_of(const fs::path& path, DType dtype,
                             const std::vector<std::int32_t>& tokens, const Shape& shape) {
  ModelLoader loader(path);
  TransformerOptions options;
  options.micro_batch = shape.dim(0);
  options.seq_len = shape.dim(1);
  options.dtype = dtype;
  options.training = false;
  Transformer model(Device::open({.threads = 1}), loader.config(), options);
  model.allocate();
  loader.read_weights(model.stream(), model.parameters());
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(loader.config().vocab_size));
  model.logits(logits, tokens);
  return logits;
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

class HfModel : public ::testing::Test {
 protected:
  void expect_golden_logits(const fs::path& path, const std::string& name, double tolerance) {
    SafetensorsReader golden(kGolden / "logits.safetensors");
    const auto tokens = golden.values<std::int32_t>(name + ".tokens");
    const Shape shape = golden.at(name + ".tokens").shape();
    const auto got = logits_of(path, DType::kF32, tokens, shape);
    EXPECT_LT(relative_l2(got, golden.values<float>(name + ".logits")), tolerance) << path;
  }

  testing::TempFolder folder_;
};

TEST_F(HfModel, FoldersOfTransformersGiveItsLogits) {
  HfModelReader sharded(kGolden / "sharded");
  ModelConfig config = ModelConfig::gpt2(2, 3, 18, 19, 263);
  config.norm_eps = 3e-5f;
  EXPECT_EQ(sharded.config(), config);
  EXPECT_EQ(sharded.dtype(), DType::kF32);
  HfModelReader bf16(kGolden / "bf16");
  EXPECT_EQ(bf16.config(), ModelConfig::gpt2(3, 2, 12, 14, 61));
  EXPECT_EQ(bf16.dtype(), DType::kBF16);
  expect_golden_logits(kGolden / "sharded", "sharded", 1e-5);
  expect_golden_logits(kGolden / "bf16", "bf16", 1e-5);
}

TEST_F(HfModel, OurFolderIsTheOneThatTransformersWasShown) {
  // python_ref/test_hf.py loads it in transformers. Its weights are rounded to bf16.
  expect_golden_logits(kGolden / "llmc", "sharded", 0.02);
  HfModelReader source(kGolden / "sharded");
  const auto tokenizer = make_byte_tokenizer();
  write_hf_model(folder_ / "out", source, {.dtype = DType::kBF16, .tokenizer = tokenizer.get()});
  const auto written = files_of(folder_ / "out");
  for (const auto& [name, content] : files_of(kGolden / "llmc")) {
    ASSERT_TRUE(written.contains(name)) << name;
    // The tokenizer's own files have tests of their own.
    if (name == "vocab.json" || name == "merges.txt" || name == "tokenizer.json") continue;
    EXPECT_TRUE(written.at(name) == content) << name;
  }
  EXPECT_EQ(load_tokenizer(folder_ / "out")->hash(), tokenizer->hash());
}

TEST_F(HfModel, NamesAndShapesAreThoseOfTheParameterTable) {
  TinyRun run;
  const ModelConfig& config = run.model.config();
  const auto& table = run.model.parameters().table();
  const auto weights = weights_by_layer(config.n_layer);
  ASSERT_EQ(weights.size(), table.size());
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(weights[i].kind->full_name(weights[i].layer), table[i].name);
    EXPECT_EQ(weights[i].kind->shape(config, config.padded_vocab_size()), table[i].shape);
    EXPECT_EQ(&kind_of(table[i].name), weights[i].kind);
    EXPECT_EQ(hf_name_of(table[i].name), weights[i].kind->full_hf_name(weights[i].layer));
  }
  for (const char* bad : {"blocks.", "blocks.1", "blocks.wte", "ln1.weight", "blocks.0.wte", ""}) {
    EXPECT_THROW(kind_of(bad), Error) << bad;
  }
}

TEST_F(HfModel, EveryWayBetweenTheFormatsKeepsEveryBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TinyRun run(dtype);
    run.begin();
    run.step(0);
    ModelWeights weights(run.model.stream(), run.model.config(), run.model.parameters());
    const std::string prefix(name_of(dtype));
    const fs::path hf = folder_ / (prefix + "_hf"), bin = folder_ / (prefix + ".bin");
    const fs::path native = folder_ / (prefix + "_native");
    write_hf_model(hf, weights, {.dtype = dtype, .max_file_bytes = 2000});
    EXPECT_TRUE(fs::exists(hf / "model.safetensors.index.json"));
    write_llmc_model(bin, weights, dtype);
    write_model_checkpoint(native, weights, dtype, {}, nullptr);
    verify_checkpoint(checkpoint_folder(native, 0));
    int count = 0;
    for (const fs::path& from : {hf, bin, native}) {
      const std::string name = prefix + std::to_string(count++);
      ModelLoader loader(from);
      EXPECT_EQ(loader.config(), run.model.config());
      EXPECT_EQ(loader.dtype(), dtype);
      TinyRun back(dtype);
      loader.read_weights(back.model.stream(), back.model.parameters());
      EXPECT_TRUE(back.weights() == run.weights()) << from;

      write_llmc_model(folder_ / (name + ".bin"), loader.weights(), dtype);
      EXPECT_TRUE(read_text(folder_ / (name + ".bin")) == read_text(bin)) << from;
      write_hf_model(folder_ / (name + "_hf"), loader.weights(),
                     {.dtype = dtype, .max_file_bytes = 2000});
      EXPECT_TRUE(files_of(folder_ / (name + "_hf")) == files_of(hf)) << from;
      write_model_checkpoint(folder_ / (name + "_native"), loader.weights(), dtype, {}, nullptr);
      EXPECT_TRUE(files_of(checkpoint_folder(folder_ / (name + "_native"), 0)) ==
                  files_of(checkpoint_folder(native, 0)))
          << from;
    }
  }
}

TEST_F(HfModel, PrecisionsConvert) {
  TinyRun run;
  run.begin();
  run.step(0);
  ModelWeights weights(run.model.stream(), run.model.config(), run.model.parameters());
  write_hf_model(folder_ / "rounded", weights, {.dtype = DType::kBF16});
  TinyRun low(DType::kBF16), low_too(DType::kBF16);
  HfModelReader(folder_ / "rounded").read_weights(low.model.stream(), low.model.parameters());
  write_hf_model(folder_ / "exact", weights, {.dtype = DType::kF32});
  HfModelReader(folder_ / "exact").read_weights(low_too.model.stream(), low_too.model.parameters());
  EXPECT_TRUE(low.weights() == low_too.weights());
  TinyRun widened;
  HfModelReader(folder_ / "rounded")
      .read_weights(widened.model.stream(), widened.model.parameters());
  ModelWeights wide(widened.model.stream(), widened.model.config(), widened.model.parameters());
  write_hf_model(folder_ / "again", wide, {.dtype = DType::kBF16});
  EXPECT_TRUE(files_of(folder_ / "again") == files_of(folder_ / "rounded"));
}

TEST_F(HfModel, MastersAreWrittenWhereTheyAreMoreExact) {
  TinyRun run(DType::kBF16);
  run.begin();
  run.step(0);  // from here on masters and weights differ
  CheckpointWriter writer(folder_ / "run", run.model.parameters(), run.optimizer, {});
  CheckpointInfo info;
  info.step = 1;
  info.model = run.model.config();
  writer.save(run.model.stream(), info);
  writer.wait();
  ModelLoader loader(folder_ / "run");
  write_hf_model(folder_ / "f32", loader.weights(), {.dtype = DType::kF32});
  TinyRun masters, exported;
  loader.read_weights(masters.model.stream(), masters.model.parameters());
  HfModelReader(folder_ / "f32").read_weights(exported.model.stream(), exported.model.parameters());
  EXPECT_TRUE(exported.weights() == masters.weights());
}

TEST_F(HfModel, ACheckpointOfWeightsAloneSaysSo) {
  TinyRun run;
  run.begin();
  ModelWeights weights(run.model.stream(), run.model.config(), run.model.parameters());
  const auto tokenizer = make_byte_tokenizer();
  CheckpointInfo info;
  info.step = 7;
  info.val_loss = 1.5;
  info.optimizer = "adamw";
  write_model_checkpoint(folder_ / "run", weights, DType::kF32, info, tokenizer.get());
  const ModelLoader loader(folder_ / "run");
  ASSERT_NE(loader.checkpoint(), nullptr);
  EXPECT_EQ(loader.checkpoint()->step, 7);
  EXPECT_EQ(loader.checkpoint()->val_loss, 1.5);
  EXPECT_EQ(loader.checkpoint()->optimizer, "");
  EXPECT_EQ(loader.checkpoint()->tokenizer_hash, tokenizer->hash());
  EXPECT_EQ(loader.tokenizer_folder(), folder_ / "run/tokenizer");
  testing::expect_error(ErrorKind::kConfig, "holds weights alone", [&] {
    CheckpointReader(loader.source())
        .read_all(run.model.stream(), run.model.parameters(), run.optimizer,
                  run.model.step_block());
  });
}

}  // namespace
}  // namespace llmc
