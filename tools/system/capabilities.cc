#include "tools/system/capabilities.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>

namespace tarpon {
namespace {

std::string capability_name(int capability) {
  switch (capability) {
    case CAP_NET_ADMIN:
      return "CAP_NET_ADMIN";
    case CAP_NET_RAW:
      return "CAP_NET_RAW";
    case CAP_SYS_ADMIN:
      return "CAP_SYS_ADMIN";
    case CAP_IPC_LOCK:
      return "CAP_IPC_LOCK";
    case CAP_BPF:
      return "CAP_BPF";
    default:
      return fmt::format("capability {}", capability);
  }
}

}  // namespace

bool has_capability(int capability) {
  std::ifstream file("/proc/thread-self/status");
  for (std::string word; file >> word;) {
    if (word != "CapEff:") continue;
    std::uint64_t bits = 0;
    file >> std::hex >> bits;
    return (bits >> capability & 1) != 0;
  }
  return false;
}

std::vector<std::string> missing_capabilities(const std::vector<int>& wanted) {
  std::vector<std::string> missing;
  for (const int each : wanted) {
    const bool there = has_capability(each) || (each == CAP_BPF && has_capability(CAP_SYS_ADMIN));
    if (!there) missing.push_back(capability_name(each));
  }
  return missing;
}

Result<void> check_xdp_privileges(const std::string& deed, const std::string& command) {
  const auto missing = missing_capabilities({CAP_SYS_ADMIN, CAP_BPF, CAP_NET_ADMIN});
  if (missing.empty()) return {};
  return fail(Error::Code::permission, fmt::format("{} needs {}: run as root, sudo {}", deed,
                                                   fmt::join(missing, ", "), command));
}

Result<void> keep_capabilities(const std::vector<int>& wanted) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 ||
      ::syscall(SYS_capget, &header, sets.data()) != 0) {
    return fail_system(errno, "dropping capabilities");
  }
  std::array<std::uint32_t, _LINUX_CAPABILITY_U32S_3> kept{};
  for (const int each : wanted) {
    kept[static_cast<std::size_t>(CAP_TO_INDEX(each))] |= std::uint32_t{1} << (each % 32);
  }
  for (std::size_t i = 0; i < sets.size(); ++i) {
    sets[i].permitted &= kept[i];
    sets[i].effective = sets[i].permitted;
    sets[i].inheritable = 0;
  }
  if (::syscall(SYS_capset, &header, sets.data()) != 0) {
    return fail_system(errno, "dropping capabilities");
  }
  return {};
}

}  // namespace tarpon
