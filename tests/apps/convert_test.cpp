// The program convert, and the others on what it writes, run as a user runs them.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/program.h"
#include "llmc/core/file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::Arguments;
using testing::Outcome;
using testing::TempFolder;

class ConvertApp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    succeed("prepare", {"--corpus", "tales", "--bytes", "20000", "--seed", "1", "--val-tokens",
                        "2000", "--out-dir", "data", "--name", "tales"});
    succeed("train", {"--n-layer",      "1",
                      "--n-head",       "2",
                      "--n-embd",       "16",
                      "--block-size",   "32",
                      "--train-data",   "data/tales_train.bin",
                      "--micro-batch",  "2",
                      "--threads",      "1",
                      "--max-steps",    "3",
                      "--val-every",    "0",
                      "--sample-every", "0",
                      "--out-dir",      "run"});
  }
  static void TearDownTestSuite() { delete folder_; }

  static Outcome run(const std::string& app, const Arguments& arguments) {
    return testing::run_app(app, arguments, folder_->path().string());
  }
  static std::string succeed(const std::string& app, const Arguments& arguments) {
    const Outcome outcome = run(app, arguments);
    EXPECT_EQ(outcome.status, 0) << app << ": " << outcome.err;
    if (app != "sample") {  // which tells its speed there
      EXPECT_EQ(outcome.err, "") << app;
    }
    return outcome.out;
  }
  static void refuse(const Arguments& arguments, const std::string& part) {
    const Outcome outcome = run("convert", arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_EQ(outcome.err.rfind("convert: ", 0), 0u) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  static std::string loss_of(const std::string& model) {
    return succeed("eval", {"--checkpoint", model, "--data", "data/tales_val.bin", "--json"});
  }

  static TempFolder* folder_;
};

TempFolder* ConvertApp::folder_ = nullptr;

TEST_F(ConvertApp, EveryFormatIsTheSameModel) {
  const std::string loss = loss_of("run");
  EXPECT_EQ(succeed("convert", {"--checkpoint", "run", "--out", "a/hf"}),
            "a/hf: f32 weights of run/checkpoints/step_00000003, with tokenizer\n");
  EXPECT_EQ(loss_of("a/hf"), loss);
  EXPECT_EQ(succeed("convert", {"--checkpoint", "a/hf", "--out", "a/model.bin"}),
            "a/model.bin: f32 weights of a/hf\n");
  EXPECT_EQ(loss_of("a/model.bin"), loss);
  EXPECT_EQ(succeed("convert", {"--checkpoint", "a/model.bin", "--out", "a/run", "--format",
                                "native", "--tokenizer", "byte"}),
            "a/run: f32 weights of a/model.bin, with tokenizer\n");
  EXPECT_EQ(loss_of("a/run"), loss);
  EXPECT_EQ(succeed("convert", {"--checkpoint", "a/model.bin", "--out", "a/low", "--precision",
                                "bf16", "--max-file-mb", "1"}),
            "a/low: bf16 weights of a/model.bin, without tokenizer\n");
  EXPECT_NE(loss_of("a/low"), loss);
}

TEST_F(ConvertApp, HuggingFaceFoldersBringTheirTokenizer) {
  succeed("convert", {"--checkpoint", "run", "--out", "b/hf"});
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors",
                           "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"}) {
    EXPECT_TRUE(fs::exists(*folder_ / "b/hf" / name)) << name;
  }
  const auto sample = [&](const std::string& model) {
    return succeed("sample", {"--checkpoint", model, "--prompt", "Ann ", "--max-new-tokens", "20"});
  };
  EXPECT_EQ(sample("b/hf"), sample("run"));

  succeed("train", {"--init-from", "b/hf", "--train-data", "data/tales_train.bin", "--micro-batch",
                    "2", "--threads", "1", "--max-steps", "2", "--val-every", "0", "--sample-every",
                    "0", "--out-dir", "b/tuned"});
  EXPECT_NE(sample("b/tuned"), "");
  const Outcome resumed = run("train", {"--resume", "b/hf"});
  EXPECT_EQ(resumed.status, 2);
  EXPECT_NE(resumed.err.find("expected auto, a run or a checkpoint folder"), std::string::npos);
}

TEST_F(ConvertApp, WeightsAloneAreToStartFromNotToResume) {
  succeed("convert", {"--checkpoint", "run", "--out", "c/run", "--format", "native"});
  const Outcome resumed = run("train", {"--resume", "c/run"});
  EXPECT_EQ(resumed.status, 2);
  EXPECT_NE(resumed.err.find("holds weights alone; start from it with init_from"),
            std::string::npos)
      << resumed.err;
}

TEST_F(ConvertApp, WrongOptionsAreNamed) {
  write_text(*folder_ / "there.bin", "mine");
  make_folders(*folder_ / "there");
  write_text(*folder_ / "there/file", "mine");
  refuse({"--checkpoint", "run"}, "out");
  refuse({"--out", "new"}, "checkpoint");
  refuse({"--checkpoint", "run", "--out", "there.bin"}, "out: expected a new name, got there.bin");
  refuse({"--checkpoint", "run", "--out", "there"}, "out: expected a new name, got there");
  refuse({"--checkpoint", "gone", "--out", "new"}, "'gone', which does not exist");
  refuse({"--checkpoint", "there", "--out", "new"}, "a folder that is none of them");
  refuse({"--checkpoint", "run", "--out", "new", "--format", "onnx"},
         "format: expected hf, llmc or native, got onnx");
  refuse({"--checkpoint", "run", "--out", "new", "--precision", "fp16"},
         "precision: expected fp32 or bf16, got fp16");
  refuse({"--checkpoint", "run", "--out", "new", "--tokenizer", "gone"}, "gone");
  refuse({"--checkpoint", "run", "--out", "new", "--max-file-mb", "0"}, "max-file-mb");
  refuse({"--checkpoint", "run", "--out", ""}, "out: expected a name");
  refuse({"--checkpoint", "run", "--out", "new.bin", "--tokenizer", "byte"},
         "tokenizer: expected none with the format llmc");
  refuse({"--checkpoint", "run", "--out", "new.bin", "--max-file-mb", "7"},
         "max_file_mb: expected it with the format hf only");
  EXPECT_FALSE(fs::exists(*folder_ / "new.bin"));
  EXPECT_FALSE(fs::exists(*folder_ / "new"));
  EXPECT_EQ(read_text(*folder_ / "there.bin"), "mine");
}

TEST_F(ConvertApp, ATokenizerThatCannotBeReadIsLeftOut) {
  succeed("convert", {"--checkpoint", "run", "--out", "d/hf"});
  write_text(*folder_ / "d/hf/tokenizer.json", "{");
  const Outcome outcome = run("convert", {"--checkpoint", "d/hf", "--out", "d/again"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.err.find("warning: the model is written without its tokenizer:"),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.out.find("without tokenizer"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace llmc
