#include "llmc/comm/communicator.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "llmc/core/error.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

Tensor view(std::vector<float>& values) {
  return {values.data(), DType::kF32, {static_cast<std::int64_t>(values.size())}};
}

class SingleProcess : public ::testing::Test {
 protected:
  Device device_ = Device::open();
  Stream stream_{device_};
  std::unique_ptr<Communicator> comm_ = Communicator::open(device_);
  std::vector<float> in_ = std::vector<float>(37);
  void SetUp() override {
    if (comm_->size() != 1) GTEST_SKIP() << "started with " << comm_->size() << " ranks";
    std::iota(in_.begin(), in_.end(), 1.5f);
  }
};

TEST_F(SingleProcess, CollectivesKeepOrCopyTheElements) {
  const std::vector<float> before = in_;
  std::vector<float> out(in_.size());
  EXPECT_EQ(comm_->rank(), 0);
  comm_->all_reduce(stream_, view(in_));
  comm_->broadcast(stream_, view(in_), 0);
  comm_->reduce_scatter(stream_, view(in_), view(in_));
  comm_->all_gather(stream_, view(in_), view(in_));
  comm_->barrier(stream_);
  EXPECT_EQ(in_, before);
  comm_->reduce_scatter(stream_, view(out), view(in_));
  stream_.synchronize();
  EXPECT_EQ(out, before);
  std::fill(out.begin(), out.end(), 0.0f);
  comm_->all_gather(stream_, view(out), view(in_));
  stream_.synchronize();
  EXPECT_EQ(out, before);
}

TEST_F(SingleProcess, WrongArgumentsAreRefused) {
  std::vector<float> out(36);
  std::vector<std::int32_t> integers(37);
  const Tensor ints(integers.data(), DType::kI32, {37});
  const auto refused = [](const char* part, auto call) {
    testing::expect_error(ErrorKind::kInput, part, call);
  };
  refused("expected f32 or bf16", [&] { comm_->all_reduce(stream_, ints); });
  refused("expected f32 or bf16", [&] { comm_->reduce_scatter(stream_, ints, ints); });
  refused("expected one dtype", [&] { comm_->all_gather(stream_, view(in_), ints); });
  refused("got 37", [&] { comm_->reduce_scatter(stream_, view(out), view(in_)); });
  refused("got 36", [&] { comm_->all_gather(stream_, view(out), view(in_)); });
  refused("a root of 0 to 0", [&] { comm_->broadcast(stream_, view(in_), 1); });
  refused("a root of 0 to 0", [&] { comm_->broadcast(stream_, view(in_), -1); });
}

}  // namespace
}  // namespace llmc
