#include "llmc/core/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "llmc/core/error.h"

namespace llmc {
namespace {

TEST(Shape, ProductAndIndexing) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.numel(), 30);
  EXPECT_EQ(shape.dim(-1), 5);
  EXPECT_EQ(shape.str(), "(2, 3, 5)");
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_THROW(shape.dim(3), Error);
  EXPECT_THROW((Shape{2, -1}), Error);
  EXPECT_THROW((Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}), Error);
}

TEST(Tensor, ViewsShareElements) {
  std::vector<float> values(12);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor t(values.data(), DType::kF32, {4, 3});
  EXPECT_EQ(t.rows(2, 4).data<float>()[0], 6.0f);
  EXPECT_EQ(t.rows(2, 4).shape(), (Shape{2, 3}));
  EXPECT_EQ(t.flat(5, 4).data<float>()[0], 5.0f);
  EXPECT_EQ(t.view({2, 6}).dim(1), 6);
  EXPECT_EQ(t.bytes(), 48u);
  EXPECT_THROW(t.view({5}), Error);
  EXPECT_THROW(t.rows(3, 5), Error);
  EXPECT_THROW(t.flat(10, 3), Error);
  EXPECT_THROW(t.data<bf16>(), Error);
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(to_f32(to_bf16(1.0f)), 1.0f);
  EXPECT_EQ(to_bf16(1.00390625f).bits, 0x3f80);  // halfway, down to even
  EXPECT_EQ(to_bf16(1.01171875f).bits, 0x3f82);  // halfway, up to even
  EXPECT_TRUE(to_f32(to_bf16(std::bit_cast<float>(0x7f800001u))) !=
              to_f32(to_bf16(std::bit_cast<float>(0x7f800001u))));  // NaN stays NaN
}

}  // namespace
}  // namespace llmc
