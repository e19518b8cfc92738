#include "llmc/train/log_file.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"
#include "llmc/train/sinks.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::FileSizeLimit;

class LogFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = std::signal(SIGXFSZ, SIG_IGN);
    set_log_sink([this](LogLevel level, std::string_view message) {
      EXPECT_EQ(level, LogLevel::kWarning);
      warnings_.emplace_back(message);
    });
  }
  void TearDown() override {
    set_log_sink({});
    std::signal(SIGXFSZ, before_);
  }

  std::string text() const { return read_text(path_); }
  void expect_warnings(const std::vector<std::string>& parts) const {
    ASSERT_EQ(warnings_.size(), parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_NE(warnings_[i].find(parts[i]), std::string::npos) << warnings_[i];
      EXPECT_NE(warnings_[i].find(path_.string()), std::string::npos) << warnings_[i];
    }
  }

  testing::TempFolder folder_;
  std::filesystem::path path_ = folder_ / "log";
  std::vector<std::string> warnings_;

 private:
  void (*before_)(int) = nullptr;
};

std::string line(int number) {
  return concat("line ", 1000 + number, "\n");  // 10 bytes
}

std::string lines(int begin, int end) {
  std::string all;
  for (int i = begin; i < end; ++i) all += line(i);
  return all;
}

TEST_F(LogFileTest, LinesWaitUntilThereIsRoom) {
  {
    LogFile log(path_);
    int next = 0;
    const auto append_to = [&](int end) {
      while (next < end) log.append(line(next++));
    };
    append_to(3);
    {
      const FileSizeLimit full(47);
      append_to(20);
      EXPECT_EQ(text(), lines(0, 5).substr(0, 47));
    }
    {
      const FileSizeLimit nearly_full(49);  // the torn line grows, and stays torn
      append_to(21);
      EXPECT_EQ(text(), lines(0, 5).substr(0, 49));
    }
    {
      const FileSizeLimit nearly_full(130);
      append_to(25);
      EXPECT_EQ(text(), lines(0, 13));
    }
    append_to(26);
    EXPECT_EQ(text(), lines(0, 26));
    append_to(30);
  }
  EXPECT_EQ(text(), lines(0, 30));
  expect_warnings({"File too large after 7 of 10 bytes; its lines wait", "can be written again"});
}

TEST_F(LogFileTest, ThoseThatStillWaitAtTheEndAreTriedOnceMore) {
  {
    LogFile log(path_);
    const FileSizeLimit full(15);  // ends before the log does
    for (int i = 0; i < 4; ++i) log.append(line(i));
  }
  EXPECT_EQ(text(), lines(0, 4));
  expect_warnings({"wait in memory", "can be written again"});
}

TEST_F(LogFileTest, TheOldestWholeLinesAreLostBeyondTheLimit) {
  for (const std::uint64_t room : {20, 23}) {
    warnings_.clear();
    std::filesystem::remove(path_);
    {
      LogFile log(path_, 50);
      {
        const FileSizeLimit full(room);
        for (int i = 0; i < 30; ++i) log.append(line(i));
      }
      log.append(line(30));
    }
    // A torn line is completed, whatever comes after it.
    EXPECT_EQ(text(), room == 20 ? lines(0, 2) + lines(25, 31) : lines(0, 3) + lines(26, 31));
    expect_warnings({"wait in memory", "except for 23 of them", "lacks 23 lines"});
  }
}

TEST_F(LogFileTest, LinesThatNeverFoundRoomAreCounted) {
  const FileSizeLimit full(15);
  {
    LogFile log(path_);
    for (int i = 0; i < 4; ++i) log.append(line(i));
  }
  EXPECT_EQ(text(), lines(0, 2).substr(0, 15));
  expect_warnings({"wait in memory", "lacks 3 lines, which could not be written"});
}

TEST_F(LogFileTest, TheLogsOfARunWait) {
  const auto log_steps = [&](const std::filesystem::path& folder, std::uint64_t room) {
    make_folders(folder);
    JsonLog json(folder / "log.jsonl");
    MainLog main(folder / "main.log");
    StepEvent event;
    event.log = true;
    const auto log_to = [&](std::int64_t end) {
      for (; event.step < end; ++event.step) {
        json.on_event(event);
        main.on_event(event);
      }
    };
    log_to(5);
    {
      const FileSizeLimit full(room);
      log_to(100);
    }
    log_to(101);
  };
  log_steps(folder_ / "alike", 1'000'000);
  EXPECT_TRUE(warnings_.empty());
  log_steps(folder_ / "full", 1000);
  EXPECT_EQ(warnings_.size(), 4u);
  for (const char* name : {"log.jsonl", "main.log"}) {
    EXPECT_EQ(read_text(folder_ / "full" / name), read_text(folder_ / "alike" / name));
  }
}

}  // namespace
}  // namespace llmc
