#include "xdp/base/processors.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

namespace tarpon {
namespace {

/// `directory` and those above it, down from which limits hold: "/a/b", "/a", "".
template <typename Visit>
void upwards(std::string directory, Visit visit) {
  while (directory.ends_with('/')) directory.pop_back();
  for (;;) {
    visit(directory);
    const std::size_t slash = directory.rfind('/');
    if (slash == std::string::npos) return;
    directory.resize(slash);
  }
}

/// "50000 100000": 0.5. Version 2 has "max" for no limit.
std::optional<double> read_v2(const std::string& group) {
  double quota = 0, period = 0;
  if (std::ifstream(group + "/cpu.max") >> quota >> period && quota > 0 && period > 0) {
    return quota / period;
  }
  return std::nullopt;
}

/// Version 1 has -1 for no limit.
std::optional<double> read_v1(const std::string& group) {
  double quota = 0, period = 0;
  const bool known = std::ifstream(group + "/cpu.cfs_quota_us") >> quota &&
                     std::ifstream(group + "/cpu.cfs_period_us") >> period;
  if (known && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

bool has_word(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string one; std::getline(words, one, ',');) {
    if (one == word) return true;
  }
  return false;
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  constexpr std::array kMounts2{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
  constexpr std::array kMounts1{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu"};
  std::optional<double> least;
  const auto note = [&least](std::optional<double> quota) {
    if (quota) least = std::min(least.value_or(*quota), *quota);
  };
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b", "0::/a/b"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    // A group that is not below the mount, as in some containers, is the mount itself.
    upwards(group, [&](const std::string& one) {
      for (const char* mount : kMounts2) {
        if (controllers.empty()) note(read_v2(fmt::format("{}{}{}", root, mount, one)));
      }
      for (const char* mount : kMounts1) {
        if (has_word(controllers, "cpu")) note(read_v1(fmt::format("{}{}{}", root, mount, one)));
      }
    });
  }
  return least;
}

int allowed_processors() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return 1;  // more than 1024 processors, which the set does not hold, are no error elsewhere
}

double usable_processors() {
  const double allowed = allowed_processors();
  return std::min(allowed, cpu_quota().value_or(allowed));
}

}  // namespace tarpon
