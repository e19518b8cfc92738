#include "llmc/nn/transformer.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/ops/step.h"
#include "nn/tiny_model.h"

namespace llmc {
namespace {

const ModelConfig kConfig = ModelConfig::gpt2(2, 2, 16, 12, 50);

TransformerOptions options() {
  TransformerOptions o;
  o.micro_batch = 2;
  o.seq_len = 8;
  return o;
}

template <class Fn>
std::string error_of(ErrorKind kind, const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Transformer, ParameterTable) {
  Transformer model(Device::open({.threads = 1}), kConfig, options());
  std::vector<std::string> names;
  for (const Parameter& p : model.parameters().table()) names.push_back(p.name);
  const std::vector<std::string> block = {"ln1.weight",    "ln1.bias",         "attn.qkv.weight",
                                          "attn.qkv.bias", "attn.proj.weight", "attn.proj.bias",
                                          "ln2.weight",    "ln2.bias",         "mlp.fc.weight",
                                          "mlp.fc.bias",   "mlp.proj.weight",  "mlp.proj.bias"};
  std::vector<std::string> expected = {"wte", "wpe"};
  for (const char* prefix : {"blocks.0.", "blocks.1."}) {
    for (const std::string& name : block) expected.push_back(prefix + name);
  }
  expected.insert(expected.end(), {"ln_f.weight", "ln_f.bias"});
  EXPECT_EQ(names, expected);
  EXPECT_EQ(model.parameters().buckets().size(), 4u);
  EXPECT_EQ(model.parameters().numel(), kConfig.num_parameters());
  for (const Parameter& p : model.parameters().table()) {
    EXPECT_EQ(p.group == OptimizerGroup::kDecay, p.shape.rank() == 2) << p.name;
  }
}

TEST(Transformer, PlansWithoutAllocating) {
  // Far more than there is.
  TransformerOptions o;
  o.micro_batch = 64;
  Transformer model(Device::open({.threads = 1}), ModelConfig::preset("gpt3-175B"), o);
  const std::string report = model.report();
  EXPECT_NE(report.find("174604836864"), std::string::npos) << report;
  EXPECT_NE(report.find("gradients"), std::string::npos) << report;
  EXPECT_NE(report.find("TiB"), std::string::npos) << report;
  EXPECT_FALSE(model.allocated());
  const std::vector<std::int32_t> ids(64 * 2048);
  error_of(ErrorKind::kMemory, [&] { model.forward(ids, ids); });
  error_of(ErrorKind::kMemory, [&] { model.init(1); });
  error_of(ErrorKind::kMemory, [&] { model.step_block(); });
  error_of(ErrorKind::kMemory, [&] { model.allocate(); });
}

TEST(Transformer, RefusesOptions) {
  const auto refused = [](const char* name, auto change) {
    TransformerOptions o = options();
    change(o);
    const std::string error = error_of(
        ErrorKind::kConfig, [&] { Transformer(Device::open({.threads = 1}), kConfig, o); });
    EXPECT_NE(error.find(name), std::string::npos) << error;
  };
  refused("micro_batch", [](TransformerOptions& o) { o.micro_batch = 0; });
  refused("seq_len", [](TransformerOptions& o) { o.seq_len = 13; });
  refused("seq_len", [](TransformerOptions& o) { o.seq_len = -1; });
  refused("dtype", [](TransformerOptions& o) { o.dtype = DType::kU8; });
  refused("ranks", [](TransformerOptions& o) { o.ranks = 0; });
  refused("chunk_bytes", [](TransformerOptions& o) { o.head_chunk_bytes = 0; });
  ModelConfig rope = kConfig;
  rope.position = PositionKind::kRope;
  error_of(ErrorKind::kConfig, [&] { Transformer(Device::open({.threads = 1}), rope, options()); });
}

TEST(Transformer, RefusesBadTokensBeforeTouchingAnything) {
  Transformer model = testing::make_model(kConfig, options());
  const auto batch = testing::random_batch(50, 16, 1);
  const auto with = [](std::vector<std::int32_t> ids, std::size_t place, std::int32_t id) {
    ids[place] = id;
    return ids;
  };
  const std::string error = error_of(
      ErrorKind::kInput, [&] { model.forward(with(batch.tokens, 11, 50), batch.targets); });
  EXPECT_NE(error.find("got 50 in row 1, position 3"), std::string::npos) << error;
  error_of(ErrorKind::kInput, [&] { model.forward(with(batch.tokens, 0, -1), batch.targets); });
  error_of(ErrorKind::kInput, [&] { model.forward(batch.tokens, with(batch.targets, 0, -2)); });
  error_of(ErrorKind::kInput, [&] { model.evaluate(batch.tokens, with(batch.targets, 0, 50)); });
  error_of(ErrorKind::kInput, [&] { model.forward(batch.tokens, batch.targets, 2, 7); });
  error_of(ErrorKind::kInput, [&] { model.forward(batch.tokens, batch.targets, 3); });
  error_of(ErrorKind::kInput, [&] { model.forward(batch.tokens, batch.targets, 1, 9); });
  std::vector<float> few(3);
  error_of(ErrorKind::kInput, [&] { model.evaluate(batch.tokens, batch.targets, 0, 0, few); });
  error_of(ErrorKind::kInput, [&] { model.logits(few, batch.tokens); });
  for (const float g : testing::all_gradients(model)) ASSERT_EQ(g, 0.0f);
  EXPECT_EQ(model.read_step_block().counted_tokens, 0);
}

TEST(Transformer, RefusesCallsOutOfOrder) {
  Transformer model = testing::make_model(kConfig, options());
  const auto batch = testing::random_batch(50, 16, 1);
  error_of(ErrorKind::kInput, [&] { model.backward(); });
  model.forward(batch.tokens, batch.targets);
  model.evaluate(batch.tokens, batch.targets);
  error_of(ErrorKind::kInput, [&] { model.backward(); });
  const StepInputs inputs{.lr = 0, .seed = 0, .step = 0, .nominal_tokens = 16};
  model.begin_step(inputs);
  model.forward(batch.tokens, batch.targets);
  error_of(ErrorKind::kInput, [&] { model.forward(batch.tokens, batch.targets); });
  error_of(ErrorKind::kInput, [&] { model.evaluate(batch.tokens, batch.targets); });
  model.backward();
  error_of(ErrorKind::kInput, [&] { model.backward(); });
  error_of(ErrorKind::kInput, [&] { model.forward(batch.tokens, batch.targets); });
  error_of(ErrorKind::kInput, [&] { model.begin_step(inputs, 0); });
  error_of(ErrorKind::kInput,
           [&] { model.begin_step({.lr = 0, .seed = 0, .step = 0, .nominal_tokens = 0}); });
  TransformerOptions o = options();
  o.training = false;
  Transformer lean = testing::make_model(kConfig, o);
  error_of(ErrorKind::kConfig, [&] { lean.forward(batch.tokens, batch.targets); });
}

TEST(Transformer, WithoutBeginStepEveryPairStandsAlone) {
  Transformer model = testing::make_model(kConfig, options());
  const auto batch = testing::random_batch(50, 16, 1);
  model.forward(batch.tokens, batch.targets);
  model.backward();
  const auto first = testing::all_gradients(model);
  const double loss_sum = model.read_step_block().loss_sum;
  model.forward(batch.tokens, batch.targets);
  model.backward();
  EXPECT_EQ(testing::all_gradients(model), first);
  EXPECT_DOUBLE_EQ(model.read_step_block().loss_sum, 2 * loss_sum);
  model.begin_step({.lr = 0, .seed = 0, .step = 0, .nominal_tokens = 16});
  model.forward(batch.tokens, batch.targets);
  model.backward();
  EXPECT_EQ(testing::all_gradients(model), first);
  EXPECT_DOUBLE_EQ(model.read_step_block().loss_sum, loss_sum);
}

TEST(Transformer, PaddingStaysZero) {
  TransformerOptions o = options();
  o.ranks = 3;
  Transformer model(Device::open({.threads = 2}), kConfig, o);
  model.allocate();
  model.init(42);
  const auto batch = testing::random_batch(50, 16, 1);
  model.forward(batch.tokens, batch.targets);
  model.backward();
  const ParameterSet& p = model.parameters();
  for (const bool gradients : {false, true}) {
    for (std::size_t b = 0; b < p.buckets().size(); ++b) {
      EXPECT_EQ(p.buckets()[b].size % (3 * kNormBlock), 0);
      const Tensor bucket = gradients ? p.bucket_gradients(b) : p.bucket_values(b);
      auto values = testing::read_values(model.stream(), bucket);
      for (const Parameter& row : p.table()) {
        if (row.bucket != b) continue;
        std::int64_t used = row.shape.numel();
        if (row.name == "wte") used = 50 * 16;  // its own padding rows are zero too
        std::fill_n(values.begin() + row.offset, used, 0.0f);
      }
      for (const float v : values) ASSERT_EQ(v, 0.0f) << gradients << ' ' << b;
    }
  }
}

TEST(Transformer, Hooks) {
  Transformer model = testing::make_model(kConfig, options());
  const auto batch = testing::random_batch(50, 16, 1);
  std::vector<int> needed, ready;
  model.on_bucket_needed([&](std::size_t b) { needed.push_back(static_cast<int>(b)); });
  // A bucket that is ready does not change any more.
  std::vector<std::vector<float>> final_gradients(4);
  model.on_bucket_ready([&](std::size_t b) {
    ready.push_back(static_cast<int>(b));
    final_gradients[b] =
        testing::read_values(model.stream(), model.parameters().bucket_gradients(b));
  });
  model.begin_step({.lr = 0, .seed = 0, .step = 0, .nominal_tokens = 32}, 2);
  model.forward(batch.tokens, batch.targets);
  EXPECT_EQ(needed, (std::vector<int>{0, 1, 2, 3, 0}));
  needed.clear();
  model.backward();
  EXPECT_EQ(needed, (std::vector<int>{3, 2, 1}));
  EXPECT_TRUE(ready.empty());  // the first of two micro-steps
  model.forward(batch.tokens, batch.targets);
  model.backward();
  EXPECT_EQ(ready, (std::vector<int>{3, 2, 0, 1}));
  for (std::size_t b = 0; b < 4; ++b) {
    EXPECT_EQ(testing::read_values(model.stream(), model.parameters().bucket_gradients(b)),
              final_gradients[b]);
  }
  needed.clear();
  ready.clear();
  model.evaluate(batch.tokens, batch.targets);
  EXPECT_EQ(needed, (std::vector<int>{0, 1, 2, 3, 0}));
  model.on_bucket_ready({});
  model.begin_step({.lr = 0, .seed = 0, .step = 1, .nominal_tokens = 16});
  model.forward(batch.tokens, batch.targets);
  model.backward();
  EXPECT_TRUE(ready.empty());
}

TEST(Transformer, MovesKeepViews) {
  static_assert(!std::is_copy_constructible_v<Transformer>);
  Transformer model = testing::make_model(kConfig, options());
  const auto batch = testing::random_batch(50, 16, 1);
  Stream& stream = model.stream();
  const ParameterSet& parameters = model.parameters();
  StepBlock* block = model.step_block();
  const Tensor wte = parameters.value("wte");
  model.forward(batch.tokens, batch.targets);
  Transformer moved = std::move(model);
  moved.backward();
  const auto gradients = testing::all_gradients(moved);
  EXPECT_EQ(&moved.stream(), &stream);
  EXPECT_EQ(&moved.parameters(), &parameters);
  EXPECT_EQ(moved.step_block(), block);
  EXPECT_EQ(moved.parameters().value("wte").raw(), wte.raw());
  Transformer other = testing::make_model(kConfig, options(), 2, 9);
  other = std::move(moved);
  other.forward(batch.tokens, batch.targets);
  other.backward();
  EXPECT_EQ(testing::all_gradients(other), gradients);
}

TEST(Transformer, LogitsAgreeWithLosses) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TransformerOptions o = options();
    o.dtype = dtype;
    o.head_chunk_bytes = 5 * 128 * 4;
    Transformer model = testing::make_model(kConfig, o);
    const auto batch = testing::random_batch(50, 16, 1);
    std::vector<float> logits(16 * 50), losses(16);
    model.logits(logits, batch.tokens);
    model.evaluate(batch.tokens, batch.targets, 0, 0, losses);
    for (std::size_t r = 0; r < 16; ++r) {
      double sum = 0;
      for (std::size_t v = 0; v < 50; ++v) sum += std::exp(static_cast<double>(logits[r * 50 + v]));
      const auto target = static_cast<std::size_t>(batch.targets[r]);
      EXPECT_NEAR(losses[r], std::log(sum) - logits[r * 50 + target], 1e-5) << r;
    }
  }
}

}  // namespace
}  // namespace llmc
