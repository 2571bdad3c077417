#include "tools/job/datapath_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "tools/cli/wrapped_text.h"

namespace tarpon {
namespace {

/// "1-3,5" of ascending numbers.
std::string runs(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

std::string datapath_text(std::span<const RankInfo> ranks) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& one = ranks[rank];
    const std::string lanes = one.lanes == 1 ? "" : fmt::format(" with {} lanes", one.lanes);
    const std::string what = fmt::format("{}{}: {}", one.datapath, lanes, one.datapath_reason);
    std::size_t at = 0;
    while (at < groups.size() && groups[at].first != what) ++at;
    if (at == groups.size()) groups.push_back({what, {}});
    groups[at].second.push_back(rank);
  }
  if (groups.size() == 1) return "all ranks " + groups[0].first;
  std::string text;
  for (const auto& [what, members] : groups) {
    text += fmt::format("{}rank{} {} {}", text.empty() ? "" : "; ", members.size() > 1 ? "s" : "",
                        runs(members), what);
  }
  return text;
}

std::string mtu_text(const std::vector<RankInfo>& ranks) {
  const auto [least, most] = extreme_mtus(ranks);
  const std::uint32_t narrow = ranks[least].mtu, wide = ranks[most].mtu;
  if (narrow == wide) return fmt::format("MTU {}", narrow);
  return fmt::format("MTU {} (rank {}) to {} (rank {})", narrow, least, wide, most);
}

std::string shrunk_line(const std::string& shrunk_slots) {
  return shrunk_slots.empty() ? "" : wrapped("# " + shrunk_slots) + "\n";
}

std::string multicast_line(const std::string& multicast) {
  return multicast.empty() ? "" : wrapped("# multicast: " + multicast) + "\n";
}

std::string secret_line(tarpon_integrity integrity) {
  if (integrity == TARPON_INTEGRITY_SEALED) {
    return "# secret: connections are TLS 1.3, packets are encrypted (AES-128-GCM)\n";
  }
  if (integrity != TARPON_INTEGRITY_KEYED) return "";
  return "# secret: connections are TLS 1.3, packets carry tags (AES-128-GMAC)\n";
}

std::string hosts_line(const std::string& hosts, const std::string& unused) {
  if (hosts.empty()) return "";
  const bool shared = !hosts.starts_with("off");
  return wrapped("# hosts: " + hosts + (shared && !unused.empty() ? "; unused: " + unused : "")) +
         "\n";
}

}  // namespace tarpon
