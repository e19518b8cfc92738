#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

#include "cli/app.h"
#include "cli/ranks.h"
#include "comm/process_group_impl.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc::cli {
namespace {

int status_of(const std::function<Work()>& prepare) {
  setenv("OMP_WAIT_POLICY", "passive", 1);  // else it starts the program again
  return run_app("app", nullptr, prepare);
}

TEST(RunAppTest, ErrorsBeforeTheWorkAreBadInputUnlessOthersMayBeTheReason) {
  for (const ErrorKind kind : {ErrorKind::kConfig, ErrorKind::kInput, ErrorKind::kMemory,
                               ErrorKind::kDevice, ErrorKind::kIo}) {
    EXPECT_EQ(status_of([=]() -> Work { fail(kind, "a", "expected b"); }), kBadInput);
  }
  EXPECT_EQ(status_of([]() -> Work { throw std::runtime_error("b"); }), kBadInput);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(status_of([]() -> Work {
              fail(ErrorKind::kComm, "comm", "expected 2 ranks before the deadline");
            }),
            kFailed);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "app: [comm] expected 2 ranks before the deadline\n");
}

TEST(RunAppTest, ErrorsOfTheWorkAreFailures) {
  for (const ErrorKind kind : {ErrorKind::kConfig, ErrorKind::kComm}) {
    EXPECT_EQ(status_of([=]() -> Work { return [=]() -> int { fail(kind, "a", "b"); }; }), kFailed);
  }
  EXPECT_EQ(status_of([]() -> Work { return [] { return 129; }; }), 129);
  EXPECT_EQ(status_of([]() -> Work { return {}; }), kDone);
}

TEST(RunAppTest, WhatRanksLogNamesTheAppAndTheRank) {
  for (const int rank : {0, 2}) {
    const ProcessGroup group(std::make_unique<ProcessGroup::Impl>(
        "tcp", Star{.rank = rank, .size = 3, .peers = {}}, StartUp{}));
    log_as_one("app", group);
    ::testing::internal::CaptureStderr();
    log(LogLevel::kWarning, "warm");
    log(LogLevel::kError, "[comm] expected b");
    EXPECT_EQ(
        ::testing::internal::GetCapturedStderr(),
        concat(rank == 0 ? "warning: warm\n" : "", "app: rank ", rank, ": [comm] expected b\n"));
    set_log_sink({});
  }
}

}  // namespace
}  // namespace llmc::cli
