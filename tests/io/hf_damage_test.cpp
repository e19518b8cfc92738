// Hugging Face folders that must be refused, each in one sentence that names what is wrong, and
// writers that must leave nothing behind.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tiny_run.h"
#include "llmc/core/error.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/hf_model.h"
#include "llmc/io/llmc_format.h"
#include "llmc/io/safetensors.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_error;
using testing::put_file;
using testing::TinyRun;

class HfDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    run_.begin();
    write(folder(), 1'000'000);
  }
  fs::path folder() const { return folder_ / "hf"; }
  void write(const fs::path& path, std::uint64_t max_file_bytes) {
    ModelWeights weights(run_.model.stream(), run_.model.config(), run_.model.parameters());
    write_hf_model(path, weights, {.max_file_bytes = max_file_bytes});
  }

  void expect_refused(const std::string& part, const fs::path& at) {
    expect_error(ErrorKind::kInput, part, [&] { HfModelReader reader(at); });
    expect_error(ErrorKind::kInput, at.string(), [&] { HfModelReader reader(at); });
  }
  void expect_refused(const std::string& part) { expect_refused(part, folder()); }

  /// The folder with a changed config, for the time of one check.
  void refuse_config(const std::string& part, const std::function<void(json&)>& change) {
    const std::string good = read_text(folder() / "config.json");
    json config = json::parse(good);
    change(config);
    put_file(folder() / "config.json", config.dump());
    expect_refused(part);
    put_file(folder() / "config.json", good);
  }

  struct Values {
    SafetensorsSpec spec;
    std::vector<float> data;
  };
  /// The folder with changed tensors, for the time of one check.
  void refuse_tensors(const std::string& part,
                      const std::function<void(std::vector<Values>&)>& change) {
    const fs::path path = folder() / "model.safetensors";
    const std::string good = read_text(path);
    std::vector<Values> tensors = read(path);
    change(tensors);
    write_tensors(path, tensors);
    expect_refused(part);
    put_file(path, good);
  }
  static std::vector<Values> read(const fs::path& path) {
    SafetensorsReader reader(path);
    std::vector<Values> tensors;
    for (const SafetensorsEntry& entry : reader.entries()) {
      tensors.push_back(
          {{entry.name, *entry.dtype, entry.shape()}, reader.values<float>(entry.name)});
    }
    return tensors;
  }
  static void write_tensors(const fs::path& path, std::vector<Values>& tensors) {
    std::vector<SafetensorsSpec> specs;
    for (Values& tensor : tensors) {
      tensor.data.resize(static_cast<std::size_t>(tensor.spec.shape.numel()));
      specs.push_back(tensor.spec);
    }
    SafetensorsWriter writer(path, specs);
    for (const Values& tensor : tensors) {
      const std::size_t bytes = tensor.data.size() * size_of(tensor.spec.dtype);
      writer.write(tensor.spec.name, tensor.data.data(), bytes);
    }
    writer.commit();
  }
  static Values& named(std::vector<Values>& tensors, const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const Values& v) { return v.spec.name == name; });
    EXPECT_NE(found, tensors.end()) << name;
    return *found;
  }

  testing::TempFolder folder_;
  TinyRun run_;
};

TEST_F(HfDamage, ConfigsOfOtherModels) {
  const auto refused = [&](const std::string& part, const std::string& key, const json& value) {
    refuse_config(part, [&](json& config) { config[key] = value; });
  };
  refused("model_type: expected \"gpt2\", the only architecture that is built, got \"llama\"",
          "model_type", "llama");
  refused("got \"gptj\"", "model_type", "gptj");
  refused("model_type: expected \"gpt2\"", "model_type", 3);
  refused("activation_function: expected \"gelu_new\", got \"relu\"", "activation_function",
          "relu");
  refused("got \"gelu\"", "activation_function", "gelu");
  refused("scale_attn_by_inverse_layer_idx: expected false, got true",
          "scale_attn_by_inverse_layer_idx", true);
  refused("scale_attn_weights: expected true, got false", "scale_attn_weights", false);
  refused("add_cross_attention: expected false", "add_cross_attention", true);
  refused("tie_word_embeddings: expected true", "tie_word_embeddings", false);
  refused("quantization_config", "quantization_config", json::object());
  refused("n_inner: expected 4 * n_embd = 24, got 25", "n_inner", 25);
  refused("n_embd: expected a multiple of n_head (5), got 6", "n_head", 5);
  for (const char* key : {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size"}) {
    for (const json& bad : {json(0), json(-1), json(2.5), json("2"), json(1e30), json::array(),
                            json(std::uint64_t{1} << 31)}) {
      refused(concat(key, ": expected a whole number of 1 to"), key, bad);
    }
    refused(concat("expected ", key, ", got none"), key, nullptr);
  }
  for (const json& bad : {json(0), json(-1e-5), json(1), json("1e-5")}) {
    refused("layer_norm_epsilon: expected a number between 0 and 1", "layer_norm_epsilon", bad);
  }
  refuse_config("expected model_type \"gpt2\", got none",
                [](json& config) { config.erase("model_type"); });
  refuse_config("expected a JSON object", [](json& config) { config = 3; });
  put_file(folder() / "config.json", "{");
  expect_refused("config.json: expected JSON");
  put_file(folder() / "config.json", std::string(100, '[') + std::string(100, ']'));
  expect_refused("at most 32 levels");
}

TEST_F(HfDamage, WhatDoesNotChangeTheModelIsAccepted) {
  json config = json::parse(read_text(folder() / "config.json"));
  config["activation_function"] = "gelu_pytorch_tanh";
  config["n_inner"] = 24;
  config["reorder_and_upcast_attn"] = true;
  config["n_ctx"] = config["n_positions"];
  config.erase("n_positions");
  config.erase("torch_dtype");
  put_file(folder() / "config.json", config.dump());
  EXPECT_EQ(HfModelReader(folder()).config(), run_.model.config());

  // Buffers of older versions, names without "transformer.", and the head once more.
  std::vector<Values> tensors = read(folder() / "model.safetensors");
  for (Values& tensor : tensors) tensor.spec.name = tensor.spec.name.substr(12);
  tensors.push_back({{"h.0.attn.bias", DType::kU8, {1, 1, 5, 5}}, {}});
  tensors.push_back({{"h.1.attn.masked_bias", DType::kF32, {}}, {}});
  tensors.push_back({{"lm_head.weight", DType::kF32, {11, 6}}, named(tensors, "wte.weight").data});
  write_tensors(folder() / "model.safetensors", tensors);
  TinyRun back;
  HfModelReader(folder()).read_weights(back.model.stream(), back.model.parameters());
  EXPECT_TRUE(back.weights() == run_.weights());
}

TEST_F(HfDamage, MissingExtraAndMisshapenTensors) {
  const std::string fc = "transformer.h.1.mlp.c_fc.weight";
  refuse_tensors("expected a tensor 'h.1.mlp.c_fc.weight', got none", [&](auto& tensors) {
    tensors.erase(tensors.begin() + (&named(tensors, fc) - tensors.data()));
  });
  refuse_tensors("tensor 'score.weight': expected only the weights of a GPT-2 of 2 layers",
                 [](auto& tensors) {
                   tensors.push_back({{"score.weight", DType::kF32, {2}}, {}});
                 });
  refuse_tensors("tensor 'transformer.h.2.ln_1.bias': expected only", [](auto& tensors) {
    tensors.push_back({{"transformer.h.2.ln_1.bias", DType::kF32, {6}}, {}});
  });
  refuse_tensors(concat("tensor '", fc, "': expected shape (6, 24) as in config.json, got (24, 6)"),
                 [&](auto& tensors) {
                   named(tensors, fc).spec.shape = {24, 6};
                 });
  refuse_tensors("tensor 'transformer.wte.weight': expected shape (11, 6)", [](auto& tensors) {
    named(tensors, "transformer.wte.weight").spec.shape = {12, 6};
  });
  refuse_tensors(
      "tensor 'transformer.ln_f.bias': expected F32 or BF16, got I32",
      [](auto& tensors) { named(tensors, "transformer.ln_f.bias").spec.dtype = DType::kI32; });
  refuse_tensors("with and without 'transformer.'", [](auto& tensors) {
    tensors.push_back({{"wte.weight", DType::kF32, {11, 6}}, {}});
  });
  refuse_tensors("tensor 'lm_head.weight': expected the same as the token embedding",
                 [](auto& tensors) {
                   Values head = named(tensors, "transformer.wte.weight");
                   head.spec.name = "lm_head.weight";
                   head.data[65] += 1.0f;
                   tensors.push_back(head);
                 });
  refuse_config("expected the tensors of 2147483647 layers",
                [](json& config) { config["n_layer"] = 0x7fffffff; });
  refuse_config("expected a tensor 'h.2.ln_1.weight'", [](json& config) { config["n_layer"] = 3; });
  HfModelReader still_good(folder());
}

TEST_F(HfDamage, MissingAndTruncatedFiles) {
  const fs::path file = folder() / "model.safetensors";
  const std::string good = read_text(file);
  put_file(file, good.substr(0, good.size() - 1));
  expect_refused("model.safetensors: tensor");
  expect_refused("the file is truncated");
  put_file(file, good + "x");
  expect_refused("expected the file to end at byte");
  put_file(file, good.substr(0, 5));
  expect_refused("this is no safetensors file");
  fs::remove(file);
  expect_refused("expected model.safetensors or model.safetensors.index.json, got neither");
  put_file(folder() / "pytorch_model.bin", "PK");
  expect_refused("got pytorch_model.bin only; load the folder with transformers");
  put_file(folder() / "model.safetensors.index.json", "{}");
  expect_refused("index.json: expected a weight_map");
}

TEST_F(HfDamage, Indexes) {
  const fs::path sharded = folder_ / "sharded";
  write(sharded, 2000);
  const fs::path path = sharded / "model.safetensors.index.json";
  const std::string good = read_text(path);
  const auto refused = [&](const std::string& part, const std::function<void(json&)>& change) {
    json index = json::parse(good);
    change(index["weight_map"]);
    put_file(path, index.dump());
    expect_refused(part, sharded);
    put_file(path, good);
  };
  const std::string wpe = "transformer.wpe.weight";
  refused("index.json: expected the file gone.safetensors, got none",
          [&](json& map) { map[wpe] = "gone.safetensors"; });
  refused("expected the plain name of a file", [&](json& map) { map[wpe] = "../x.safetensors"; });
  refused("expected the plain name of a file", [&](json& map) { map[wpe] = 3; });
  refused("tensor 'transformer.wpe.weight' is not in the index",
          [&](json& map) { map.erase(wpe); });
  refused("expected tensor 'transformer.wpe.weight' in",
          [&](json& map) { map[wpe] = map["transformer.ln_f.bias"]; });
  refused("expected tensor 'other' in", [&](json& map) { map["other"] = map[wpe]; });
  put_file(path, "[");
  expect_refused("index.json: expected JSON", sharded);
  put_file(path, std::string(20, '[') + std::string(20, ']'));
  expect_refused("at most 4 levels", sharded);
  put_file(path, good);

  const std::string first = json::parse(good)["weight_map"][wpe];
  const std::string bytes = read_text(sharded / first);
  put_file(sharded / first, bytes.substr(0, bytes.size() - 4));
  expect_refused("the file is truncated", sharded);
  const std::string last = json::parse(good)["weight_map"]["transformer.ln_f.bias"];
  ASSERT_NE(first, last);
  put_file(sharded / first, read_text(sharded / last));
  expect_refused("is in", sharded);
}

TEST_F(HfDamage, WritersRefuseWhatTheyCannotWrite) {
  ModelWeights weights(run_.model.stream(), run_.model.config(), run_.model.parameters());
  const std::string before = read_text(folder() / "config.json");
  expect_error(ErrorKind::kInput, "expected a new folder, got one that exists",
               [&] { write_hf_model(folder(), weights, {}); });
  expect_error(ErrorKind::kInput, "expected a new folder",
               [&] { write_model_checkpoint(folder(), weights, DType::kF32, {}, nullptr); });
  EXPECT_EQ(read_text(folder() / "config.json"), before);
  expect_error(ErrorKind::kConfig, "expected f32 or bf16, got i32",
               [&] { write_hf_model(folder_ / "x", weights, {.dtype = DType::kI32}); });
  expect_error(ErrorKind::kConfig, "expected f32 or bf16, got i32",
               [&] { write_model_checkpoint(folder_ / "x", weights, DType::kI32, {}, nullptr); });
  const auto tokenizer = make_byte_tokenizer();
  expect_error(ErrorKind::kInput, "at most the 11 tokens of the model, got 257",
               [&] { write_hf_model(folder_ / "x", weights, {.tokenizer = tokenizer.get()}); });
  EXPECT_FALSE(fs::exists(folder_ / "x"));
  make_folders(folder_ / "empty");
  write(folder_ / "empty/", 1000);  // an empty folder is as good as none
  HfModelReader reader(folder_ / "empty");
}

TEST_F(HfDamage, AFullDiskLeavesNothing) {
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  ModelWeights weights(run_.model.stream(), run_.model.config(), run_.model.parameters());
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_.path())) all.push_back(entry.path());
    return all;
  };
  const std::vector<std::string> found = names();
  rlimit unlimited{};
  ::getrlimit(RLIMIT_FSIZE, &unlimited);
  rlimit limit = unlimited;
  limit.rlim_cur = 3000;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const auto fails = [&](const std::function<void()>& write_it) {
    expect_error(ErrorKind::kIo, "cannot write", write_it);
  };
  fails([&] { write_hf_model(folder_ / "new", weights, {}); });
  fails([&] { write_model_checkpoint(folder_ / "new", weights, DType::kF32, {}, nullptr); });
  fails([&] { write_llmc_model(folder_ / "new.bin", weights, DType::kF32); });
  ::setrlimit(RLIMIT_FSIZE, &unlimited);
  ::signal(SIGXFSZ, before);
  EXPECT_EQ(names(), found);
}

TEST_F(HfDamage, DamageOfTheSourceLeavesNothing) {
  ModelWeights weights(run_.model.stream(), run_.model.config(), run_.model.parameters());
  write_model_checkpoint(folder_ / "run", weights, DType::kF32, {}, nullptr);
  const fs::path file = checkpoint_folder(folder_ / "run", 0) / "model.safetensors";
  std::string bytes = read_text(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put_file(file, bytes);
  CheckpointReader damaged(file.parent_path());
  expect_error(ErrorKind::kInput, "checksum differs",
               [&] { write_hf_model(folder_ / "new", damaged, {}); });
  expect_error(ErrorKind::kInput, "checksum differs",
               [&] { write_llmc_model(folder_ / "new.bin", damaged, DType::kF32); });
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  EXPECT_FALSE(fs::exists(folder_ / ".new.new"));
  EXPECT_FALSE(fs::exists(folder_ / "new.bin"));
}

}  // namespace
}  // namespace llmc
