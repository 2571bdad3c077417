#include "xdp/base/system_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace tarpon {
namespace {

constexpr std::string_view kGroups = "/sys/fs/cgroup";

/// "15", or "any number of".
std::string limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "any number of";
  return std::to_string(limit.rlim_cur);
}

/// The control group of this process that limits its tasks: its folder below /sys/fs/cgroup.
std::string pids_group() {
  std::ifstream table("/proc/self/cgroup");
  for (std::string line; std::getline(table, line);) {
    const std::size_t name = line.find(':') + 1, path = line.find(':', name) + 1;
    if (name == 0 || path == 0) continue;
    const std::string_view controllers = std::string_view(line).substr(name, path - 1 - name);
    if (controllers == "pids") return fmt::format("{}/pids{}", kGroups, line.substr(path));
    if (controllers.empty()) return fmt::format("{}{}", kGroups, line.substr(path));
  }
  return std::string(kGroups);
}

/// The smallest pids.max of that group and those above it.
std::optional<std::uint64_t> pids_max() {
  std::optional<std::uint64_t> least;
  for (std::string group = pids_group(); group.size() >= kGroups.size();
       group.erase(group.rfind('/'))) {
    std::uint64_t value = 0;  // "max" is not read as a number
    if (std::ifstream(group + "/pids.max") >> value) least = std::min(least.value_or(value), value);
  }
  return least;
}

}  // namespace

Error with_limit(Error error) {
  if (error.system_errno == EMFILE) {
    error.message +=
        fmt::format(": this process may open {} files (RLIMIT_NOFILE): raise `ulimit -n`",
                    limit_of(RLIMIT_NOFILE));
  } else if (error.system_errno == ENFILE) {
    error.message += ": the limit of the whole system: raise sysctl fs.file-max";
  }
  return error;
}

Error start_error(int error, const std::string& what) {
  Error result = Error::system(error, what);
  result.code = Error::Code::io;
  if (error != EAGAIN) return result;
  const auto in_group = pids_max();
  result.message += fmt::format(": this user may have {} processes and threads: raise `ulimit -u`",
                                limit_of(RLIMIT_NPROC));
  result.message += in_group
                        ? fmt::format("; its control group may have {}: raise pids.max", *in_group)
                        : "; its control group has no limit (pids.max)";
  return result;
}

Result<void> check_threads(unsigned count) {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::optional<Error> failure;
  std::vector<std::thread> threads;
  try {
    while (threads.size() < count) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return over; });
      });
    }
  } catch (const std::system_error& error) {
    failure = start_error(error.code().value(), fmt::format("cannot start {} threads", count));
  }
  {
    const std::lock_guard lock(mutex);
    over = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
  if (failure) return fail(*std::move(failure));
  return {};
}

}  // namespace tarpon
