#include "llmc/comm/communicator.h"

#include <gtest/gtest.h>

#include <numeric>

#include "llmc/core/error.h"
#include "support/temp_folder.h"
#include "support/test_tensor.h"

namespace llmc {
namespace {

using testing::TestTensor;
using testing::Values;

class SingleProcess : public ::testing::Test {
 protected:
  Device device_ = Device::open();
  Stream stream_{device_};
  std::unique_ptr<Communicator> comm_ = Communicator::open(device_);
  Values values_ = Values(37);

  void SetUp() override {
    if (comm_->size() != 1) GTEST_SKIP() << "started with " << comm_->size() << " ranks";
    std::iota(values_.begin(), values_.end(), 1.5);
  }
};

TEST_F(SingleProcess, CollectivesKeepOrCopyTheElements) {
  const TestTensor in(stream_, DType::kF32, {37}, values_);
  EXPECT_EQ(comm_->rank(), 0);
  comm_->all_reduce(stream_, in);
  comm_->broadcast(stream_, in, 0);
  comm_->reduce_scatter(stream_, in, in);
  comm_->all_gather(stream_, in, in);
  comm_->barrier(stream_);
  EXPECT_EQ(in.values(), values_);
  const TestTensor scattered(stream_, DType::kF32, {37}), gathered(stream_, DType::kF32, {37});
  comm_->reduce_scatter(stream_, scattered, in);
  EXPECT_EQ(scattered.values(), values_);
  comm_->all_gather(stream_, gathered, in);
  EXPECT_EQ(gathered.values(), values_);
}

TEST_F(SingleProcess, WrongArgumentsAreRefused) {
  const TestTensor in(stream_, DType::kF32, {37}), out(stream_, DType::kF32, {36});
  const TestTensor ints(stream_, DType::kI32, {37});
  const auto refused = [](const char* part, auto call) {
    testing::expect_error(ErrorKind::kInput, part, call);
  };
  refused("expected f32 or bf16", [&] { comm_->all_reduce(stream_, ints); });
  refused("expected f32 or bf16", [&] { comm_->reduce_scatter(stream_, ints, ints); });
  refused("expected one dtype", [&] { comm_->all_gather(stream_, in, ints); });
  refused("got 37", [&] { comm_->reduce_scatter(stream_, out, in); });
  refused("got 36", [&] { comm_->all_gather(stream_, out, in); });
  refused("a root of 0 to 0", [&] { comm_->broadcast(stream_, in, 1); });
  refused("a root of 0 to 0", [&] { comm_->broadcast(stream_, in, -1); });
}

}  // namespace
}  // namespace llmc
