#include "core/system_limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

/// A file of the kernel's, whose size reads as 0; empty if it is not there.
std::string read_system_file(const fs::path& path) {
  try {
    FileReader reader(path);
    std::string text(std::size_t{1} << 14, '\0');
    text.resize(reader.read_some(text.data(), text.size()));
    return text;
  } catch (const Error&) {
    return {};
  }
}

/// The number at the start of a file; none for "max" and for a missing file.
std::optional<std::int64_t> read_number(const fs::path& path) {
  std::istringstream in(read_system_file(path));
  std::int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

/// The number after `key` at the start of a line.
std::optional<std::int64_t> find_number(const std::string& text, std::string_view key) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string name;
    std::int64_t value = 0;
    if (fields >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

/// Folders of the control group of this process and of those around it, innermost first, for one
/// controller of version 1 ("memory", "cpu"), or for version 2 ("").
std::vector<fs::path> control_groups(const fs::path& root, std::string_view controller) {
  std::istringstream in(read_system_file(root / "proc/self/cgroup"));
  std::vector<fs::path> folders;
  for (std::string line; std::getline(in, line);) {
    // hierarchy-id:controllers,…:/path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = concat(",", line.substr(first + 1, second - first - 1), ",");
    if (names.find(concat(",", controller, ",")) == std::string::npos) continue;
    const fs::path mount = root / "sys/fs/cgroup" / controller;
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (; !group.empty(); group = group.parent_path()) folders.push_back(mount / group);
    folders.push_back(mount);
    break;
  }
  return folders;
}

/// Lowers `free` to what a limit leaves. Page cache that the kernel can drop counts as free.
void apply_limit(std::int64_t& free, const fs::path& group, const char* limit, const char* usage,
                 const char* reclaimable) {
  const auto most = read_number(group / limit);
  const auto used = read_number(group / usage);
  if (!most || !used) return;
  const auto cache = find_number(read_system_file(group / "memory.stat"), reclaimable);
  free = std::min(free, std::max<std::int64_t>(0, *most - *used + cache.value_or(0)));
}

/// Whether the process may run on some of the machine's processors only.
bool is_bound() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 &&
         CPU_COUNT(&set) < sysconf(_SC_NPROCESSORS_ONLN);
}

/// The processors a quota of CPU time amounts to, rounded up; none without a quota.
std::optional<std::int64_t> quota(std::optional<std::int64_t> time,
                                  std::optional<std::int64_t> period) {
  if (!time || !period || *time <= 0 || *period <= 0) return std::nullopt;
  return (*time + *period - 1) / *period;
}

}  // namespace

std::size_t available_memory(const fs::path& root) {
  constexpr std::int64_t kKiB = 1024;
  const auto available = find_number(read_system_file(root / "proc/meminfo"), "MemAvailable:");
  std::int64_t free = available ? *available * kKiB
                                : std::int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const fs::path& group : control_groups(root, "")) {
    apply_limit(free, group, "memory.max", "memory.current", "inactive_file");
  }
  for (const fs::path& group : control_groups(root, "memory")) {
    apply_limit(free, group, "memory.limit_in_bytes", "memory.usage_in_bytes",
                "total_inactive_file");
  }
  return static_cast<std::size_t>(free);
}

int usable_processors(const fs::path& root) {
  std::int64_t count = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
  for (const fs::path& group : control_groups(root, "")) {
    std::istringstream limit(read_system_file(group / "cpu.max"));  // "quota period", or "max …"
    std::int64_t time = 0;
    std::int64_t period = 0;
    if (limit >> time >> period) count = std::min(count, quota(time, period).value_or(count));
  }
  for (const fs::path& group : control_groups(root, "cpu")) {
    const auto allowed =
        quota(read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us"));
    count = std::min(count, allowed.value_or(count));
  }
  return static_cast<int>(std::max<std::int64_t>(1, count));
}

int default_threads(int processes) {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    // One number, or one per level of nesting ("4,2"), of which the first is meant.
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end != text && (*end == '\0' || *end == ',') && value >= 1 && value <= kMaxThreads) {
      return static_cast<int>(value);
    }
    log(LogLevel::kWarning, concat("OMP_NUM_THREADS: expected 1 to ", kMaxThreads, ", got '", text,
                                   "'; it is ignored"));
  }
  int processors = usable_processors();
  if (!is_bound()) processors /= processes;
  return std::clamp(processors, 1, kMaxThreads);
}

}  // namespace llmc
