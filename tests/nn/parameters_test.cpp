#include "llmc/nn/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/rng.h"
#include "llmc/ops/step.h"
#include "support/tensor_values.h"

namespace llmc {
namespace {

struct Model {
  explicit Model(DType dtype, int ranks = 1) : parameters(dtype, true, ranks) {
    parameters.begin_bucket("first");
    parameters.declare("a", {3, 5}, Initialiser::normal(0.5f, 2), OptimizerGroup::kDecay);
    parameters.declare("b", {70}, Initialiser::ones(), OptimizerGroup::kNoDecay);
    parameters.begin_bucket("second", 0);
    parameters.declare("c", {130, 100}, Initialiser::normal(2.0f), OptimizerGroup::kDecay);
    parameters.declare("d", {1}, Initialiser::zeros(), OptimizerGroup::kNoDecay);
    parameters.plan(arena);
    arena.allocate(device);
    parameters.bind(arena);
  }

  Device device = Device::open({.threads = 1});
  Stream stream{device};
  Arena arena;
  ParameterSet parameters;
};

TEST(ParameterSet, TableAndBuckets) {
  Model model(DType::kF32, 3);
  const ParameterSet& p = model.parameters;
  EXPECT_EQ(p.numel(), 15 + 70 + 13000 + 1);
  EXPECT_EQ(p.find("c"), 2u);
  EXPECT_EQ(p.table()[1].offset, 64);
  EXPECT_EQ(p.table()[1].bucket, 0u);
  EXPECT_EQ(p.table()[1].layer, -1);
  EXPECT_EQ(p.table()[3].layer, 0);
  ASSERT_EQ(p.buckets().size(), 2u);
  EXPECT_EQ(p.buckets()[0].size, 3 * kNormBlock);
  EXPECT_EQ(p.buckets()[1].size, 6 * kNormBlock);
  // The numbering does not depend on the ranks: bucket 0 holds less than one block.
  EXPECT_EQ(p.buckets()[1].first_index, kNormBlock);
  EXPECT_EQ(p.value("d").data<float>() - p.bucket_values(1).data<float>(), p.table()[3].offset);
  EXPECT_EQ(p.gradient("c").shape(), (Shape{130, 100}));
  EXPECT_EQ(p.bucket_gradients(1).numel(), p.buckets()[1].size);
  for (const Parameter& row : p.table()) EXPECT_EQ(row.offset % 64, 0) << row.name;
  EXPECT_THROW(p.find("e"), Error);
}

TEST(ParameterSet, TheChecksumIsThatOfAllValuesWhateverTheRanks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Model alone(dtype), shared(dtype, 3), other(dtype);
    initialise(alone.stream, alone.parameters, 1);
    initialise(shared.stream, shared.parameters, 1);
    initialise(other.stream, other.parameters, 2);
    const std::uint64_t checksum = checksum_of(alone.stream, alone.parameters);
    EXPECT_EQ(checksum_of(shared.stream, shared.parameters), checksum);
    EXPECT_NE(checksum_of(other.stream, other.parameters), checksum);
    const std::uint32_t one_bit = 1;
    copy_from_host(alone.stream, alone.parameters.value("d"), &one_bit);
    EXPECT_NE(checksum_of(alone.stream, alone.parameters), checksum);
  }
}

TEST(ParameterSet, GradientsAreF32AndOptional) {
  Model model(DType::kBF16);
  EXPECT_EQ(model.parameters.value("a").dtype(), DType::kBF16);
  EXPECT_EQ(model.parameters.gradient("a").dtype(), DType::kF32);

  ParameterSet bare(DType::kF32, false);
  Arena arena;
  bare.begin_bucket("x");
  bare.declare("x", {4}, Initialiser::ones(), OptimizerGroup::kDecay);
  bare.plan(arena);
  arena.allocate(model.device);
  bare.bind(arena);
  EXPECT_TRUE(bare.gradient("x").empty());
  EXPECT_TRUE(bare.bucket_gradients(0).empty());
  EXPECT_EQ(arena.bytes(MemoryKind::kGradients), 0u);
}

TEST(ParameterSet, RefusesMisuse) {
  EXPECT_THROW(ParameterSet{DType::kI32}, Error);
  EXPECT_THROW((ParameterSet{DType::kF32, true, 0}), Error);
  ParameterSet p(DType::kF32);
  EXPECT_THROW(p.declare("x", {4}, Initialiser::ones(), OptimizerGroup::kDecay), Error);
  p.begin_bucket("b");
  p.declare("x", {4}, Initialiser::ones(), OptimizerGroup::kDecay);
  EXPECT_THROW(p.declare("x", {4}, Initialiser::ones(), OptimizerGroup::kDecay), Error);
  Arena arena;
  p.plan(arena);
  EXPECT_THROW(p.declare("y", {4}, Initialiser::ones(), OptimizerGroup::kDecay), Error);
  EXPECT_THROW(p.begin_bucket("c"), Error);
  EXPECT_THROW(p.plan(arena), Error);
}

TEST(Initialise, DrawsInTableOrderAndLeavesPaddingZero) {
  Model model(DType::kF32);
  initialise(model.stream, model.parameters, 7);
  Mt19937 rng(7);
  std::vector<float> a(10), c(13000);
  rng.fill_normal(a, 0.0f, 0.5f);
  rng.fill_normal(c, 0.0f, 2.0f);
  const auto values = [&](const char* name) {
    return testing::read_values(model.stream, model.parameters.value(name));
  };
  const std::vector<float> a_values = values("a");
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(a_values[i], i < 10 ? a[i] : 0.0f);
  EXPECT_TRUE(values("c") == c);
  EXPECT_EQ(values("b"), std::vector<float>(70, 1.0f));
  EXPECT_EQ(values("d"), std::vector<float>{0.0f});
  const std::vector<float> bucket =
      testing::read_values(model.stream, model.parameters.bucket_values(0));
  for (std::size_t i = 15; i < 64; ++i) EXPECT_EQ(bucket[i], 0.0f);
  for (std::size_t i = 64 + 70; i < kNormBlock; ++i) EXPECT_EQ(bucket[i], 0.0f);
}

TEST(Initialise, RoundsBf16ToNearest) {
  Model wide(DType::kF32), narrow(DType::kBF16);
  initialise(wide.stream, wide.parameters, 11);
  initialise(narrow.stream, narrow.parameters, 11);
  for (const char* name : {"a", "b", "c", "d"}) {
    const auto w = testing::read_values(wide.stream, wide.parameters.value(name));
    const auto n = testing::read_values(narrow.stream, narrow.parameters.value(name));
    for (std::size_t i = 0; i < w.size(); ++i) {
      ASSERT_EQ(n[i], to_f32(to_bf16(w[i]))) << name << ' ' << i;
    }
  }
}

// Tensors larger than what is drawn at once still hold the stream of a single draw, whatever is
// left over at the end.
TEST(Initialise, LargeTensorsAreOneStream) {
  for (const std::int64_t extra : {0, 3, 16, 17}) {
    const std::int64_t size = 3 * (std::int64_t{1} << 20) + extra;
    ParameterSet p(DType::kF32, false);
    p.begin_bucket("x");
    p.declare("x", {size}, Initialiser::normal(1.0f), OptimizerGroup::kDecay);
    Arena arena;
    const Device device = Device::open({.threads = 1});
    Stream stream(device);
    p.plan(arena);
    arena.allocate(device);
    p.bind(arena);
    initialise(stream, p, 5);
    std::vector<float> expected(static_cast<std::size_t>(size));
    Mt19937(5).fill_normal(expected, 0.0f, 1.0f);
    const std::vector<float> got = testing::read_values(stream, p.value("x"));
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(got[i], expected[i]) << i;
  }
}

}  // namespace
}  // namespace llmc
