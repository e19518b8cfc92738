// `sample` and `eval` as a user runs them, on a tiny model that was trained for a few steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "llmc/core/device.h"
#include "llmc/core/file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::Arguments;
using testing::Outcome;

class InferenceAppTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::TempFolder;
    ASSERT_EQ(run("prepare", {"--corpus", "tales", "--bytes", "20000", "--val-tokens", "2000",
                              "--out-dir", "data", "--name", "tales"})
                  .status,
              0);
    write_text(*folder_ / "set.jsonl",
               "{\"ctx\": \"Ann saw\", \"endings\": [\"the cave.\", \"xq\"], \"label\": 0}\n"
               "{\"ctx\": \"Tom\", \"endings\": [\"zz\", \"was\", \"q\"], \"label\": \"1\"}\n");
    const Outcome trained = run("train", {"--n-layer",
                                          "1",
                                          "--n-head",
                                          "2",
                                          "--n-embd",
                                          "16",
                                          "--block-size",
                                          "32",
                                          "--tokenizer",
                                          "byte",
                                          "--train-data",
                                          "data/tales_train.bin",
                                          "--threads",
                                          "1",
                                          "--max-steps",
                                          "4",
                                          "--out-dir",
                                          "run",
                                          "--eval-choices",
                                          "set.jsonl",
                                          "--eval-choices-every",
                                          "2"});
    ASSERT_EQ(trained.status, 0) << trained.err;
    trained_ = new std::string(trained.out);
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete trained_;
  }

  static Outcome run(const std::string& app, const Arguments& arguments) {
    return testing::run_app(app, arguments, folder_->path().string());
  }
  static std::string text_of(const std::string& app, Arguments arguments) {
    arguments.insert(arguments.end(), {"--checkpoint", "run", "--threads", "1"});
    const Outcome outcome = run(app, arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  }
  static void expect_refused(const std::string& app, Arguments arguments,
                             const std::string& message) {
    arguments.insert(arguments.end(), {"--checkpoint", "run", "--threads", "1"});
    const Outcome outcome = run(app, arguments);
    EXPECT_EQ(outcome.status, 2) << message;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << message << " not in " << outcome.err;
  }

  static testing::TempFolder* folder_;
  static std::string* trained_;
};

testing::TempFolder* InferenceAppTest::folder_ = nullptr;
std::string* InferenceAppTest::trained_ = nullptr;

TEST_F(InferenceAppTest, TrainAsksAtIntervals) {
  for (const char* line : {"step 0/4 | choices acc 0.", "step 2/4 | choices acc ",
                           "step 4/4 | choices acc ", "| 2 examples |"}) {
    EXPECT_NE(trained_->find(line), std::string::npos) << line << " not in " << *trained_;
  }
  const std::string log = read_text(*folder_ / "run/log.jsonl");
  EXPECT_NE(log.find("{\"event\":\"choices\",\"step\":2,\"examples\":2,\"acc\":"),
            std::string::npos);
  EXPECT_NE(read_text(*folder_ / "run/main.log").find("s:4 eval:"), std::string::npos);
}

TEST_F(InferenceAppTest, APromptComesFromOptionFileOrInput) {
  const Arguments greedy = {"--greedy", "--max-new-tokens", "50"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), greedy.begin(), greedy.end());
    return more;
  };
  const std::string text = text_of("sample", with({"--prompt", "Ann"}));
  EXPECT_EQ(text.rfind("Ann", 0), 0u);
  write_text(*folder_ / "prompt.txt", "Ann");
  EXPECT_EQ(text_of("sample", with({"--prompt-file", "prompt.txt"})), text);
  const std::string two = text_of("sample", with({"--prompt", "Ann", "A longer prompt"}));
  EXPECT_EQ(two.rfind(text.substr(0, text.size() - 1) + "\n---\nA longer prompt", 0), 0u) << two;
}

TEST_F(InferenceAppTest, TheBatchChangesNoText) {
  const Arguments sample = {
      "--prompt", "Ann",     "Tom and", "--num-samples",        "3",   "--top-k",
      "20",       "--min-p", "0.01",    "--repetition-penalty", "1.1", "--max-new-tokens",
      "40"};
  const std::string together = text_of("sample", sample);
  for (const char* batch : {"1", "4"}) {
    Arguments some = sample;
    some.insert(some.end(), {"--batch", batch});
    EXPECT_EQ(text_of("sample", some), together);
  }
  Arguments other = sample;
  other.insert(other.end(), {"--seed", "1"});
  EXPECT_NE(text_of("sample", other), together);
}

TEST_F(InferenceAppTest, StopsAtAText) {
  const std::string all = text_of("sample", {"--prompt", "Ann", "--greedy"});
  const std::string stop = all.substr(20, 2);
  const std::string part = text_of("sample", {"--prompt", "Ann", "--greedy", "--stop", "@@", stop});
  const std::size_t end = all.find(stop, 3);
  EXPECT_EQ(part, all.substr(0, end) + "\n");
}

TEST_F(InferenceAppTest, SampleRefusesContradictions) {
  expect_refused("sample", {"--greedy", "--temperature", "0.5"}, "--greedy or --temperature");
  expect_refused("sample", {"--greedy", "--top-k", "4"}, "top_k: expected none with temperature 0");
  expect_refused("sample", {"--prompt", "a", "--interactive"}, "--prompt, --prompt-file and");
  expect_refused("sample", {"--stop", ""}, "stop: expected a text");
  expect_refused("sample", {"--prompt", std::string(40, 'a')},
                 "prompt: expected at most the 32 tokens of the model's context");
  expect_refused("sample", {"--prompt-file", "none.txt"}, "none.txt");
  expect_refused("sample", {"--min-p", "2"}, "--min-p");
  expect_refused("sample", {"--precision", "fp8"}, "precision: expected one of fp32, tf32, bf16");
  expect_refused("eval",
                 {"--choices", "set.jsonl", "--device", backend_name() == "cpu" ? "cuda" : "cpu"},
                 "device: expected ");
}

TEST_F(InferenceAppTest, EvalMeasuresDataTextAndChoices) {
  write_text(*folder_ / "text.txt", "Ann saw the cave. Then she sang.");
  const auto json = nlohmann::json::parse(
      text_of("eval", {"--data", "data/tales_val.bin", "--text", "text.txt", "--choices",
                       "set.jsonl", "--predictions", "taken.jsonl", "--json"}));
  EXPECT_EQ(json["tokens"], 1999);
  EXPECT_EQ(json["text"]["tokens"], 32);
  EXPECT_NEAR(json["text"]["bits_per_byte"].get<double>(),
              json["text"]["loss"].get<double>() / std::log(2.0), 1e-6);
  EXPECT_EQ(json["choices"]["examples"], 2);
  const std::string taken = read_text(*folder_ / "taken.jsonl");
  EXPECT_EQ(taken.rfind("{\"example\":0,\"label\":0,\"acc\":", 0), 0u) << taken;
  EXPECT_EQ(std::count(taken.begin(), taken.end(), '\n'), 2);
  const std::string table = text_of("eval", {"--choices", "set.jsonl", "--precision", "bf16"});
  for (const char* row : {"examples       2\n", "acc_norm       ", "acc_token      "}) {
    EXPECT_NE(table.find(row), std::string::npos) << table;
  }
  // Loss does not depend on the micro-batch.
  const auto loss = [&](const char* B) {
    return nlohmann::json::parse(text_of(
        "eval", {"--data", "data/tales_val.bin", "--micro-batch", B, "--json"}))["loss"]
        .get<double>();
  };
  EXPECT_NEAR(loss("1"), loss("7"), 1e-6);
}

TEST_F(InferenceAppTest, EvalRefusesBadInput) {
  expect_refused("eval", {}, "expected --data, --text or --choices, got none");
  expect_refused("eval", {"--data", "data/tales_val.bin", "--predictions", "p"}, "--predictions");
  write_text(*folder_ / "empty.txt", "");
  expect_refused("eval", {"--text", "empty.txt"}, "empty.txt: expected text, got none");
  write_text(*folder_ / "bad.jsonl", "{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 0}\n{}\n");
  expect_refused("eval", {"--choices", "bad.jsonl"}, "bad.jsonl, line 2: expected a text");
  write_text(*folder_ / "long.jsonl",
             "{\"ctx\": \"a\", \"endings\": [\"" + std::string(60, 'b') + "\"], \"label\": 0}\n");
  expect_refused("eval", {"--choices", "long.jsonl"}, "example 1: expected endings of at most 32");
}

}  // namespace
}  // namespace llmc
