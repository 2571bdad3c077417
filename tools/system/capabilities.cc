#include "tools/system/capabilities.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

}  // namespace tarpon
