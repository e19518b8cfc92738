#include "support/collective_checks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/test_tensor.h"

namespace llmc::testing {
namespace {

constexpr std::int64_t kSizes[] = {0, 1, 2, 7, 64, 1000, 20011};
/// More than an implementation moves at once.
constexpr std::int64_t kLarge = (std::int64_t{1} << 20) + 3;
constexpr DType kAllTypes[] = {DType::kF32, DType::kBF16, DType::kI32, DType::kU16, DType::kU8};

/// What rank `rank` puts into a collective: draws whose sum depends on the order of addition.
Values input(int rank, DType dtype, std::int64_t count) {
  Values values(static_cast<std::size_t>(count));
  if (dtype == DType::kF32 || dtype == DType::kBF16) {
    std::uint32_t state = 12345u + static_cast<std::uint32_t>(rank);
    for (double& value : values) {
      state = state * 1664525u + 1013904223u;
      const float draw = static_cast<float>(state >> 8) * 0x1p-22f - 2.0f;
      value = dtype == DType::kF32 ? draw : to_f32(to_bf16(draw));
    }
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 31 + 5) % 251);
  }
  return values;
}

class Collectives {
 public:
  Collectives(Communicator& comm, const Device& device) : comm_(comm), stream_(device) {}

  void check() {
    for (const std::int64_t size : kSizes) {
      SCOPED_TRACE(::testing::Message() << size << " elements, rank " << comm_.rank());
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        all_reduce(dtype, size);
        reduce_scatter(dtype, size, false);
        reduce_scatter(dtype, size, true);
      }
      for (const DType dtype : kAllTypes) {
        all_gather(dtype, size, false);
        all_gather(dtype, size, true);
        for (int root = 0; root < comm_.size(); ++root) broadcast(dtype, size, root);
      }
    }
    all_reduce(DType::kBF16, kLarge);
    reduce_scatter(DType::kF32, kLarge, true);
    all_gather(DType::kU8, kLarge, false);
    group();
    comm_.barrier(stream_);
  }

 private:
  /// NCCL's sums have an order of their own.
  bool in_rank_order() const { return comm_.name() != "nccl"; }

  Values sum(DType dtype, std::int64_t count) const {
    std::vector<float> sum(static_cast<std::size_t>(count));
    for (int r = 0; r < comm_.size(); ++r) {
      const Values part = input(r, dtype, count);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = r == 0 ? static_cast<float>(part[i]) : sum[i] + static_cast<float>(part[i]);
      }
    }
    Values rounded(sum.begin(), sum.end());
    if (dtype == DType::kBF16) {
      for (double& x : rounded) x = to_f32(to_bf16(static_cast<float>(x)));
    }
    return rounded;
  }

  void expect_sum(const Values& got, const Values& want, DType dtype) {
    if (in_rank_order()) {
      EXPECT_EQ(got, want);
      return;
    }
    const double tolerance = (dtype == DType::kF32 ? 1e-6 : 2e-2) * comm_.size();
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance * (3 + std::abs(want[i]))) << i;
    }
  }

  /// All ranks must hold the same bytes.
  void expect_same_everywhere(const TestTensor& tensor) {
    const std::vector<std::uint8_t> mine = tensor.bytes();
    const auto count = static_cast<std::int64_t>(mine.size());
    const TestTensor all(stream_, DType::kU8, {count * comm_.size()});
    comm_.all_gather(stream_, all, Tensor(tensor->raw(), DType::kU8, {count}));
    const std::vector<std::uint8_t> bytes = all.bytes();
    for (int r = 0; r < comm_.size(); ++r) {
      EXPECT_EQ(
          std::vector<std::uint8_t>(bytes.begin() + r * count, bytes.begin() + (r + 1) * count),
          mine);
    }
  }

  void all_reduce(DType dtype, std::int64_t count) {
    const TestTensor values(stream_, dtype, {count}, input(comm_.rank(), dtype, count));
    comm_.all_reduce(stream_, values);
    expect_sum(values.values(), sum(dtype, count), dtype);
    expect_same_everywhere(values);
  }

  void reduce_scatter(DType dtype, std::int64_t slice, bool in_place) {
    const std::int64_t count = slice * comm_.size();
    const TestTensor in(stream_, dtype, {count}, input(comm_.rank(), dtype, count));
    const TestTensor apart(stream_, dtype, {slice});
    const Tensor mine = in->flat(comm_.rank() * slice, slice);
    comm_.reduce_scatter(stream_, in_place ? mine : *apart.operator->(), in);
    if (in_place && slice > 0) copy(stream_, apart, mine);
    const Values whole = sum(dtype, count);
    expect_sum(
        apart.values(),
        Values(whole.begin() + comm_.rank() * slice, whole.begin() + (comm_.rank() + 1) * slice),
        dtype);
  }

  void all_gather(DType dtype, std::int64_t slice, bool in_place) {
    const TestTensor out(stream_, dtype, {slice * comm_.size()});
    const TestTensor in(stream_, dtype, {slice}, input(comm_.rank(), dtype, slice));
    const Tensor mine = out->flat(comm_.rank() * slice, slice);
    if (in_place && slice > 0) copy(stream_, mine, in);
    comm_.all_gather(stream_, out, in_place ? mine : *in.operator->());
    Values want;
    for (int r = 0; r < comm_.size(); ++r) {
      const Values part = input(r, dtype, slice);
      want.insert(want.end(), part.begin(), part.end());
    }
    EXPECT_EQ(out.values(), want);
  }

  void broadcast(DType dtype, std::int64_t count, int root) {
    const TestTensor values(stream_, dtype, {count}, input(comm_.rank(), dtype, count));
    comm_.broadcast(stream_, values, root);
    EXPECT_EQ(values.values(), input(root, dtype, count));
  }

  void group() {
    constexpr std::int64_t kCount = 517;
    const TestTensor sums(stream_, DType::kF32, {kCount}, input(comm_.rank(), DType::kF32, kCount));
    const TestTensor told(stream_, DType::kU8, {kCount}, input(comm_.rank(), DType::kU8, kCount));
    {
      const CommGroup group(comm_);
      comm_.all_reduce(stream_, sums);
      comm_.broadcast(stream_, told, comm_.size() - 1);
    }
    expect_sum(sums.values(), sum(DType::kF32, kCount), DType::kF32);
    EXPECT_EQ(told.values(), input(comm_.size() - 1, DType::kU8, kCount));
  }

  Communicator& comm_;
  Stream stream_;
};

}  // namespace

void check_collectives(Communicator& comm, const Device& device) {
  Collectives(comm, device).check();
}

}  // namespace llmc::testing
