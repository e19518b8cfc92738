#include "core/system_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "llmc/core/file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A made-up /proc and /sys.
class SystemLimits : public ::testing::Test {
 protected:
  SystemLimits() {
    write("proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 100 kB\nMemAvailable: 1024000 kB\n");
  }
  void write(const std::string& name, const std::string& text) const {
    make_folders((folder_ / name).parent_path());
    write_text(folder_ / name, text);
  }
  std::size_t memory() const { return available_memory(folder_.path()); }
  int processors() const { return usable_processors(folder_.path()); }

  testing::TempFolder folder_;
};

TEST_F(SystemLimits, MemoryIsWhatTheKernelCallsAvailable) {
  EXPECT_EQ(memory(), 1000 * kMiB);
}

TEST_F(SystemLimits, TheInnermostAndOuterGroupsOfVersion2LimitMemory) {
  write("proc/self/cgroup", "0::/slice/job\n");
  write("sys/fs/cgroup/slice/job/memory.max", "max\n");
  write("sys/fs/cgroup/slice/job/memory.current", "1048576\n");
  EXPECT_EQ(memory(), 1000 * kMiB);
  write("sys/fs/cgroup/slice/memory.max", std::to_string(300 * kMiB));
  write("sys/fs/cgroup/slice/memory.current", std::to_string(200 * kMiB));
  EXPECT_EQ(memory(), 100 * kMiB);
  write("sys/fs/cgroup/slice/memory.stat",
        "anon 5\ninactive_file " + std::to_string(50 * kMiB) + "\n");
  EXPECT_EQ(memory(), 150 * kMiB);
  write("sys/fs/cgroup/slice/job/memory.max", std::to_string(2 * kMiB));
  EXPECT_EQ(memory(), 1 * kMiB);
}

TEST_F(SystemLimits, VersionOneLimitsMemory) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(memory(), 1000 * kMiB);
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(10 * kMiB));
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", std::to_string(40 * kMiB));
  EXPECT_EQ(memory(), 0u);
  // Inside a container the group's path may exist only outside; its mount's root then counts.
  write("proc/self/cgroup", "4:memory:/elsewhere\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(70 * kMiB));
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(memory(), 70 * kMiB);
}

TEST_F(SystemLimits, QuotasLimitProcessors) {
  const int all = processors();
  EXPECT_GE(all, 1);
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(processors(), all);
  write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(processors(), 1);
  write("sys/fs/cgroup/job/cpu.max", "150000000 100000\n");
  EXPECT_EQ(processors(), all);
  write("proc/self/cgroup", "3:cpu,cpuacct:/job\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processors(), all);
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(processors(), 1);
}

}  // namespace
}  // namespace llmc
