#include "tools/host_info.h"

#include <sched.h>
#include <sys/utsname.h>

#include <fstream>

namespace tarpon {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    // x86 says "model name"; others have no line that is alike everywhere.
    if (!line.starts_with("model name")) continue;
    const std::size_t at = line.find(": ");
    return at == std::string::npos ? "" : line.substr(at + 2);
  }
  return "";
}

}  // namespace

HostInfo read_host_info() {
  HostInfo info;
  utsname names{};
  if (::uname(&names) == 0) {
    info.hostname = names.nodename;
    info.kernel = names.release;
  }
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) info.cpus = CPU_COUNT(&set);
  info.cpu_model = cpu_model();
  return info;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string line;
  for (std::string word; std::getline(file, word, '\0');) line += (line.empty() ? "" : " ") + word;
  return line;
}

}  // namespace tarpon
