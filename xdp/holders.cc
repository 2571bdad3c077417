#include "xdp/holders.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "xdp/base/printable.h"

namespace tarpon::xdp {
namespace {

using Path = std::filesystem::path;

/// Returns the processes of which `holds(directory in /proc, descriptor's name, its target)` is
/// true for some descriptor.
template <typename Holds>
std::vector<int> processes_where(const Holds& holds) {
  std::vector<int> found;
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    const std::string text = process.path().filename().string();
    int number = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (bad != std::errc() || end != text.data() + text.size()) continue;
    for (const auto& entry : std::filesystem::directory_iterator(process.path() / "fd", error)) {
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (!holds(process.path(), entry.path().filename(), target)) continue;
      found.push_back(number);
      break;
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_link(const Path& info, std::uint32_t id) {
  std::ifstream file(info);
  for (std::string word; file >> word;) {
    std::uint32_t found = 0;
    if (word == "link_id:" && file >> found && found == id) return true;
  }
  return false;
}

std::string process_text(int process) {
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  std::getline(file, name);
  return fmt::format("{} ({})", process, printable(name));
}

}  // namespace

std::vector<int> link_holders(std::uint32_t id) {
  auto found =
      processes_where([id](const Path& process, const Path& fd, const std::string& target) {
        const bool link = target.find("bpf_link") != std::string::npos ||
                          target.find("bpf-link") != std::string::npos;
        return link && is_link(process / "fdinfo" / fd, id);
      });
  std::erase(found, ::getpid());
  return found;
}

std::vector<int> socket_holders(std::uint32_t inode) {
  const std::string wanted = fmt::format("socket:[{}]", inode);
  return processes_where(
      [&](const Path&, const Path&, const std::string& target) { return target == wanted; });
}

std::string holders_text(const std::vector<int>& processes) {
  if (processes.empty()) return "";
  if (processes == std::vector{::getpid()}) return ", of this process";
  std::vector<std::string> texts;
  texts.reserve(processes.size());
  for (const int process : processes) texts.push_back(process_text(process));
  return fmt::format(", of {} {}", texts.size() == 1 ? "process" : "processes",
                     fmt::join(texts, " and "));
}

}  // namespace tarpon::xdp
