#include "tools/system/host_info.h"

#include <sys/utsname.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "xdp/base/processors.h"

namespace tarpon {
namespace {

/// The value of `name` for the first processor in /proc/cpuinfo; "" if there is none.
std::string cpu_line(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
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
  info.cpus = allowed_processors();
  info.cpu_quota = cpu_quota();
  info.cpu_model = cpu_line("model name");  // x86; others have no common line
  return info;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string line;
  for (std::string word; std::getline(file, word, '\0');) line += (line.empty() ? "" : " ") + word;
  return line;
}

std::vector<std::string> cpu_flags() {
  std::istringstream line(cpu_line("flags"));
  return {std::istream_iterator<std::string>(line), {}};
}

}  // namespace tarpon
