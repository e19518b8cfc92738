#include "llmc/io/llmc_format.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "io/tiny_run.h"
#include "llmc/core/error.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;
using testing::put_file;
using testing::TinyRun;

// Of kTinyConfig.
constexpr std::int64_t kL = 2, kC = 6, kMaxT = 5, kV = 11, kVp = 128;
constexpr std::int64_t kElements = kVp * kC + kMaxT * kC + kL * (12 * kC * kC + 13 * kC) + 2 * kC;

template <class T>
void append(std::string& out, const T* values, std::size_t count) {
  out.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

std::string header(std::vector<std::int32_t> fields) {
  fields.resize(256);
  std::string out;
  append(out, fields.data(), fields.size());
  return out;
}

std::string model_header(std::int32_t version, std::int32_t padded = kVp) {
  return header({20240326, version, kMaxT, kV, kL, 2, kC, padded});
}

class LlmcFormat : public ::testing::Test {
 protected:
  testing::TempFolder folder_;
  std::filesystem::path path_ = folder_ / "model.bin";

  static std::vector<float> elements(TinyRun& run, const std::string& name) {
    return testing::read_values(run.model.stream(), run.model.parameters().value(name));
  }
  void read_into(TinyRun& run) {
    LlmcModelReader(path_).read_weights(run.model.stream(), run.model.parameters());
  }
  void write_from(TinyRun& run, DType dtype) {
    ModelWeights weights(run.model.stream(), run.model.config(), run.model.parameters());
    write_llmc_model(path_, weights, dtype);
  }
};

TEST_F(LlmcFormat, BytesAreThoseOfTheFormat) {
  TinyRun run;
  run.begin();
  for (int i = 0; i < 3; ++i) run.step(i);  // biases and norms move off their starting values
  std::string expected = model_header(3);
  const auto add = [&](const std::string& name) {
    const std::vector<float> value = elements(run, name);
    append(expected, value.data(), value.size());
  };
  add("wte");
  add("wpe");
  for (const char* name : {"ln1.weight", "ln1.bias", "attn.qkv.weight", "attn.qkv.bias",
                           "attn.proj.weight", "attn.proj.bias", "ln2.weight", "ln2.bias",
                           "mlp.fc.weight", "mlp.fc.bias", "mlp.proj.weight", "mlp.proj.bias"}) {
    for (int layer = 0; layer < kL; ++layer) add(concat("blocks.", layer, ".", name));
  }
  add("ln_f.weight");
  add("ln_f.bias");
  write_from(run, DType::kF32);
  const std::string got = read_text(path_);
  EXPECT_EQ(got.size(), 1024u + 4 * kElements);
  EXPECT_TRUE(got == expected);
}

TEST_F(LlmcFormat, RoundTripsAreBitEqual) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TinyRun run(dtype);
    run.begin();
    run.step(0);
    write_from(run, dtype);
    EXPECT_EQ(std::filesystem::file_size(path_), 1024 + kElements * size_of(dtype));
    LlmcModelReader reader(path_);
    EXPECT_TRUE(LlmcModelReader::recognises(path_));
    EXPECT_EQ(reader.config(), testing::kTinyConfig);
    EXPECT_EQ(reader.dtype(), dtype);
    TinyRun back(dtype);
    read_into(back);
    EXPECT_TRUE(back.weights() == run.weights());
  }
}

TEST_F(LlmcFormat, PrecisionsConvert) {
  TinyRun run;
  run.begin();
  run.step(0);
  TinyRun low(DType::kBF16);
  write_from(run, DType::kF32);
  read_into(low);  // rounds on reading
  const std::vector<float> exact = elements(run, "wpe"), rounded = elements(low, "wpe");
  for (std::size_t i = 0; i < kMaxT * kC; ++i) EXPECT_EQ(rounded[i], to_f32(to_bf16(exact[i])));

  write_from(run, DType::kBF16);  // rounds on writing
  TinyRun low_too(DType::kBF16);
  read_into(low_too);
  EXPECT_TRUE(low_too.weights() == low.weights());
  TinyRun widened;
  read_into(widened);
  EXPECT_EQ(elements(widened, "wpe"), rounded);
}

TEST_F(LlmcFormat, PaddingRowsAreCropped) {
  TinyRun run;
  run.begin();
  write_from(run, DType::kF32);
  const std::string rest = read_text(path_).substr(1024 + 4 * kVp * kC);
  // Fewer rows than here, and values in the padding.
  constexpr std::int32_t kFileRows = kV + 2;
  std::string bytes = model_header(3, kFileRows);
  append(bytes, elements(run, "wte").data(), kV * kC);
  const std::vector<float> padding(2 * kC, 7.0f);
  append(bytes, padding.data(), padding.size());
  put_file(path_, bytes + rest);
  TinyRun back;
  back.begin(2);
  testing::write_values(back.model.stream(), back.model.parameters().value("wte"),
                        std::vector<float>(kVp * kC, 3.0f));
  read_into(back);
  EXPECT_TRUE(back.weights() == run.weights());
}

TEST_F(LlmcFormat, WrongModelFilesAreRefused) {
  const std::string body(4 * kElements, 'x');
  const auto refused = [&](const std::string& part, const std::string& bytes) {
    put_file(path_, bytes);
    expect_error(ErrorKind::kInput, part, [&] { LlmcModelReader reader(path_); });
    expect_error(ErrorKind::kInput, "model.bin", [&] { LlmcModelReader reader(path_); });
  };
  put_file(path_, model_header(3) + body);
  LlmcModelReader good(path_);

  refused("header of 1024 bytes", "");
  refused("header of 1024 bytes", model_header(3).substr(0, 1023));
  refused("magic 20240326", header({20240520, 3, kMaxT, kV, kL, 2, kC, kVp}) + body);
  refused("got 1 (fp32 with an unpadded vocabulary)", model_header(1) + body);
  refused("got 2 (bf16 with an unpadded vocabulary)", model_header(2) + body);
  refused("got 4 (bf16 with fp32 norms)", model_header(4) + body);
  refused("expected version 3 or 5, got 6", model_header(6) + body);
  refused("the file is truncated", model_header(3));
  refused("the file is truncated", model_header(3) + body.substr(1));
  refused("the file is too long", model_header(3) + body + "x");
  refused("the file is too long", model_header(5) + body);
  const auto field = [&](std::size_t index, std::int32_t value) {
    std::vector<std::int32_t> fields{20240326, 3, kMaxT, kV, kL, 2, kC, kVp};
    fields[index] = value;
    return header(fields) + body;
  };
  for (const std::int32_t bad : {0, -1}) {
    refused("positions", field(2, bad));
    refused("vocabulary", field(3, bad));
    refused("layers", field(4, bad));
    refused("heads", field(5, bad));
    refused("channels", field(6, bad));
    refused("padded vocabulary", field(7, bad));
  }
  refused("padded vocabulary: expected at least 129", field(3, 129));
  refused("multiple of the 4 heads", field(5, 4));
  refused("layers: expected 1 to 65536", field(4, 0x7fffffff));
  refused("channels: expected 1 to 1048576", field(6, 0x7fffffff));
  refused("the file is truncated", field(2, 0x7fffffff));
  refused("the file is truncated", field(7, 0x7fffffff));
}

TEST_F(LlmcFormat, AnotherModelIsRefused) {
  TinyRun run;
  run.begin();
  write_from(run, DType::kF32);
  TinyRun wider(DType::kF32, true, ModelConfig::gpt2(2, 2, 8, 5, 11));
  expect_error(ErrorKind::kInput, "wte", [&] { read_into(wider); });
  TinyRun deeper(DType::kF32, true, ModelConfig::gpt2(3, 2, 6, 5, 11));
  expect_error(ErrorKind::kInput, "expected 40 weights, got 28", [&] { read_into(deeper); });
  ModelConfig other = testing::kTinyConfig;
  other.norm_eps = 1e-6f;
  ModelWeights weights(run.model.stream(), other, run.model.parameters());
  expect_error(ErrorKind::kConfig, "expected norm_eps 1e-05, got 1e-06",
               [&] { write_llmc_model(path_, weights, DType::kF32); });
  other.ffn_size = 12;
  expect_error(ErrorKind::kConfig, "plain GPT-2",
               [&] { write_llmc_model(path_, weights, DType::kF32); });
  expect_error(ErrorKind::kConfig, "f32 or bf16", [&] { write_from(run, DType::kI32); });
}

TEST_F(LlmcFormat, RandomBytesAreRefused) {
  Mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = round % 2 == 0 ? "" : model_header(3);
    const std::size_t size = rng.next_u32() % 2000;
    while (bytes.size() < size) bytes.push_back(static_cast<char>(rng.next_u32()));
    if (round % 2 == 1) bytes[rng.next_u32() % 32] = static_cast<char>(rng.next_u32());
    put_file(path_, bytes);
    EXPECT_THROW(LlmcModelReader reader(path_), Error);
    EXPECT_THROW(read_llmc_debug_state(path_, testing::kTinyConfig), Error);
  }
}

/// A debug state of kTinyConfig whose n-th float is n.
std::string debug_state(std::int32_t B, std::int32_t T) {
  std::string bytes = header({20240327, 2, B, T});
  std::vector<std::int32_t> ids(static_cast<std::size_t>(2 * B * T));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % kV);
  append(bytes, ids.data(), ids.size());
  std::vector<float> values(static_cast<std::size_t>(B * T * kV + 1 + kElements));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  append(bytes, values.data(), values.size());
  return bytes;
}

TEST_F(LlmcFormat, DebugState) {
  put_file(path_, debug_state(2, 3));
  const LlmcDebugState state = read_llmc_debug_state(path_, testing::kTinyConfig);
  EXPECT_EQ(state.B, 2);
  EXPECT_EQ(state.T, 3);
  EXPECT_EQ(state.tokens, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(state.targets, (std::vector<std::int32_t>{6, 7, 8, 9, 10, 0}));
  EXPECT_EQ(state.logits.size(), 66u);
  EXPECT_EQ(state.logits[65], 65.0f);
  EXPECT_EQ(state.loss, 66.0f);
  EXPECT_EQ(state.gradients.size(), 28u);
  EXPECT_EQ(state.gradients.at("wte").size(), 768u);
  EXPECT_EQ(state.gradients.at("wte")[0], 67.0f);
  EXPECT_EQ(state.gradients.at("wpe")[0], 67.0f + 768.0f);
  EXPECT_EQ(state.gradients.at("blocks.1.ln1.weight")[0], 67.0f + 768.0f + 30.0f + 6.0f);
  EXPECT_EQ(state.gradients.at("ln_f.bias")[5], 66.0f + kElements);
}

TEST_F(LlmcFormat, WrongDebugStatesAreRefused) {
  const std::string good = debug_state(2, 3);
  const auto refused = [&](const std::string& part, const std::string& bytes) {
    put_file(path_, bytes);
    expect_error(ErrorKind::kInput, part,
                 [&] { read_llmc_debug_state(path_, testing::kTinyConfig); });
  };
  refused("header", good.substr(0, 100));
  refused("truncated", good.substr(0, 1024));
  refused("truncated", good.substr(0, good.size() - 1));
  refused("too long", good + "x");
  refused("magic", model_header(3) + good.substr(1024));
  refused("version 2", header({20240327, 1, 2, 3}) + good.substr(1024));
  refused("B of at least 1", header({20240327, 2, 0, 3}) + good.substr(1024));
  refused("T of 1 to 5", header({20240327, 2, 2, 6}) + good.substr(1024));
  refused("truncated", header({20240327, 2, 0x7fffffff, 5}) + good.substr(1024));
  std::string bad_id = good;
  bad_id[1024] = 11;
  refused("token ids of 0 to 10, got 11", bad_id);
}

}  // namespace
}  // namespace llmc
