#include "io/transpose.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace llmc {
namespace {

/// Element (o, i) of the matrix (out, in), distinct in 16 bits for these sizes.
template <class T>
T element(std::int64_t o, std::int64_t i) {
  return static_cast<T>(o * 251 + i + 1);
}

template <class T>
void check_both_ways(std::int64_t out, std::int64_t in, std::int64_t block, std::int64_t piece) {
  SCOPED_TRACE(testing::Message() << out << " x " << in << ", block " << block << ", piece "
                                  << piece);
  const auto numel = static_cast<std::size_t>(out * in);
  std::vector<T> rows(numel), columns(numel);
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t i = 0; i < in; ++i) {
      rows[static_cast<std::size_t>(o * in + i)] = element<T>(o, i);
      columns[static_cast<std::size_t>(i * out + o)] = element<T>(o, i);
    }
  }
  const auto read = transposed_reader(
      out, in, sizeof(T),
      [&](std::int64_t begin, std::int64_t count, void* to) {
        ASSERT_LE(begin + count, out * in);
        std::memcpy(to, columns.data() + begin, static_cast<std::size_t>(count) * sizeof(T));
      },
      block);
  std::vector<T> written(numel);
  std::int64_t received = 0;
  const auto write = transposed_writer(
      out, in, sizeof(T),
      [&](std::int64_t begin, const void* data, std::int64_t count) {
        ASSERT_LE(begin + count, out * in);
        std::memcpy(written.data() + begin, data, static_cast<std::size_t>(count) * sizeof(T));
        received += count;
      },
      block);
  std::vector<T> got(numel);
  for (std::int64_t begin = 0; begin < out * in; begin += piece) {
    const std::int64_t count = std::min(piece, out * in - begin);
    read(begin, count, got.data() + begin);
    write(got.data() + begin, count);
  }
  EXPECT_EQ(got, rows);
  EXPECT_EQ(written, columns);
  EXPECT_EQ(received, out * in);
}

TEST(Transpose, AnyShapeBlockAndPiece) {
  for (const auto& [out, in] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {1, 7}, {7, 1}, {3, 5}, {16, 16}, {17, 33}, {54, 18}, {40, 31}}) {
    for (const std::int64_t block : {std::int64_t{1}, in * 3, in * 16 + 1, out * in}) {
      for (const std::int64_t piece : {std::int64_t{1}, std::int64_t{10}, in, out * in}) {
        check_both_ways<std::uint32_t>(out, in, block, piece);
        check_both_ways<std::uint16_t>(out, in, block, piece);
      }
    }
  }
}

}  // namespace
}  // namespace llmc
