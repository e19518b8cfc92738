#include "llmc/io/model_loader.h"

#include <gtest/gtest.h>

#include "io/tiny_run.h"
#include "llmc/core/error.h"
#include "llmc/io/hf_model.h"
#include "llmc/io/llmc_format.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::put_file;
using testing::TinyRun;

class ModelLoading : public ::testing::Test {
 protected:
  void SetUp() override {
    run_.begin();
    run_.step(0);
  }
  void save(std::int64_t step) {
    CheckpointWriter writer(folder_ / "run", run_.model.parameters(), run_.optimizer, {});
    CheckpointInfo info;
    info.step = step;
    info.model = run_.model.config();
    make_folders(folder_ / "run");
    writer.save(run_.model.stream(), info);
    writer.wait();
  }
  void expect_model(const fs::path& path) {
    ModelLoader loader(path);
    EXPECT_EQ(loader.config(), run_.model.config());
    EXPECT_EQ(loader.dtype(), DType::kF32);
    TinyRun back(DType::kF32, true, loader.config());
    loader.read_weights(back.model.stream(), back.model.parameters());
    EXPECT_TRUE(back.weights() == run_.weights()) << path;
  }

  testing::TempFolder folder_;
  TinyRun run_;
};

TEST_F(ModelLoading, RunsCheckpointsAndLlmcFiles) {
  save(5);
  run_.step(1);
  save(10);
  const fs::path newest = folder_ / "run/checkpoints/step_00000010";
  expect_model(folder_ / "run");
  expect_model(newest);
  const ModelLoader loader(folder_ / "run");
  EXPECT_EQ(loader.source(), newest);
  EXPECT_EQ(loader.run_folder(), folder_ / "run");
  ASSERT_NE(loader.checkpoint(), nullptr);
  EXPECT_EQ(loader.checkpoint()->step, 10);
  EXPECT_EQ(ModelLoader(newest / "").run_folder(), folder_ / "run");

  fs::rename(newest, folder_ / "elsewhere");
  expect_model(folder_ / "elsewhere");
  EXPECT_EQ(ModelLoader(folder_ / "elsewhere").run_folder(), std::nullopt);
  EXPECT_EQ(ModelLoader(folder_ / "run").checkpoint()->step, 5);

  const fs::path file = folder_ / "model.bin";
  ModelWeights weights(run_.model.stream(), run_.model.config(), run_.model.parameters());
  write_llmc_model(file, weights, DType::kF32);
  expect_model(file);
  EXPECT_EQ(ModelLoader(file).checkpoint(), nullptr);
  EXPECT_EQ(ModelLoader(file).run_folder(), std::nullopt);
  EXPECT_EQ(ModelLoader(file).tokenizer_folder(), std::nullopt);

  const fs::path hf = folder_ / "hf";
  write_hf_model(hf, weights, {});
  expect_model(hf);
  EXPECT_EQ(ModelLoader(hf).checkpoint(), nullptr);
  EXPECT_EQ(ModelLoader(hf).run_folder(), std::nullopt);
  EXPECT_EQ(ModelLoader(hf).tokenizer_folder(), std::nullopt);
  put_file(hf / "tokenizer.json", "{}");
  EXPECT_EQ(ModelLoader(hf).tokenizer_folder(), hf);
}

TEST_F(ModelLoading, WhatIsNoModelIsNamed) {
  const auto refused = [&](const std::string& part, const std::string& name) {
    expect_error(ErrorKind::kInput, part, [&] { ModelLoader loader(folder_ / name); });
  };
  refused("missing", "missing");
  make_folders(folder_ / "empty");
  refused("a folder that is none of them", "empty");
  make_folders(folder_ / "begun/checkpoints");
  refused("written none yet", "begun");
  make_folders(folder_ / "hf");
  put_file(folder_ / "hf/config.json", "{}");
  refused("config.json: expected model_type \"gpt2\", got none", "hf");
  put_file(folder_ / "text", "hello, world");
  refused("got another file", "text");
  put_file(folder_ / "short", "x");
  refused("got another file", "short");
}

}  // namespace
}  // namespace llmc
