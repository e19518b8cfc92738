// Nothing is allocated once a model runs.

#include <gtest/gtest.h>

#include <span>
#include <utility>
#include <vector>

#include "llmc/ops/sample.h"
#include "nn/tiny_model.h"
#include "support/allocation_counter.h"

namespace llmc {
namespace {

const ModelConfig kConfig = ModelConfig::gpt2(2, 3, 39, 24, 97);

class Allocation : public ::testing::TestWithParam<std::pair<DType, Recompute>> {
 protected:
  TransformerOptions options() const {
    TransformerOptions o;
    o.micro_batch = 3;
    o.seq_len = 17;
    o.dtype = GetParam().first;
    o.recompute = GetParam().second;
    return o;
  }
};

INSTANTIATE_TEST_SUITE_P(Transformer, Allocation,
                         ::testing::Values(std::pair(DType::kF32, Recompute::kNone),
                                           std::pair(DType::kBF16, Recompute::kBlock)));

TEST_P(Allocation, NoneWhileRunning) {
  Transformer model = testing::make_model(kConfig, options());
  const auto batch = testing::random_batch(97, 3 * 17, 1);
  std::vector<float> logits(97 * 3), losses(3 * 17);
  KvCache cache = model.make_cache(3);
  const Buffer memory(model.stream().device(), 3 * sizeof(std::int32_t));
  const Tensor newest(memory.data(), DType::kI32, {3});
  std::size_t calls = 0;
  model.on_bucket_needed([&calls](std::size_t) { ++calls; });
  model.on_bucket_ready([&calls](std::size_t) { ++calls; });
  const auto step = [&] {
    model.begin_step({.lr = 0, .seed = 0, .step = 0, .nominal_tokens = 51});
    model.forward(batch.tokens, batch.targets);
    model.backward();
    model.evaluate(batch.tokens, batch.targets, 0, 0, losses);
    for (std::int64_t row = 0; row < 3; ++row) {
      cache.truncate(row, 0);
      model.prefill(cache, row, std::span(batch.tokens).first(11));
    }
    sample_tokens(model.stream(), newest, {}, cache.logits(), {.vocab_size = 97}, 0, 0);
    model.decode(cache, newest);
    model.read_logits(logits, cache);
  };
  step();  // the thread team starts
  const std::int64_t before = testing::allocations();
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(testing::allocations() - before, 0);
  EXPECT_GT(calls, 0u);
}

// The printed plan is what is allocated.
TEST_P(Allocation, PlanIsWhatIsAllocated) {
  const Device device = Device::open({.threads = 2});
  Transformer model(device, kConfig, options());
  const std::size_t before = testing::device_bytes();
  model.allocate();
  EXPECT_EQ(testing::device_bytes() - before, model.arena().bytes());
  const std::size_t parameters = model.arena().bytes(MemoryKind::kParameters);
  std::size_t expected = 0;
  for (const Bucket& bucket : model.parameters().buckets()) {
    expected += static_cast<std::size_t>(bucket.size) * size_of(GetParam().first);
  }
  EXPECT_EQ(parameters, expected);
}

}  // namespace
}  // namespace llmc
