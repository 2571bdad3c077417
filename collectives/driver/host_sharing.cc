#include "collectives/driver/host_sharing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "collectives/hosts/host_memory.h"

namespace tarpon {

hosts::HostLayout layout_of(const std::vector<RankInfo>& ranks) {
  std::vector<std::string> networks;
  networks.reserve(ranks.size());
  for (const RankInfo& rank : ranks) networks.push_back(rank.network);
  return hosts::HostLayout::by(networks);
}

std::string against_sharing(const std::vector<RankInfo>& ranks) {
  const hosts::HostLayout layout = layout_of(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& info = ranks[rank];
    if (!info.shares_nothing.empty()) return fmt::format("rank {}: {}", rank, info.shares_nothing);
    if (layout.count() == 1 && !info.wants_network.empty()) {
      return fmt::format("rank {}: {}", rank, info.wants_network);
    }
  }
  for (const std::vector<Rank>& host : layout.hosts) {
    for (const Rank rank : host) {
      if (ranks[rank].user == ranks[host[0]].user) continue;
      return fmt::format("ranks {} and {} of a host run as users {} and {}", host[0], rank,
                         ranks[host[0]].user, ranks[rank].user);
    }
  }
  return ranks.size() == 1 ? "one rank" : "";
}

/// "4 ranks on one host", "12 ranks on 3 hosts (4 each)", "5 ranks on 2 hosts (3, 2)".
std::string sharing_text(const hosts::HostLayout& layout) {
  std::vector<std::size_t> sizes;
  for (const auto& host : layout.hosts) sizes.push_back(host.size());
  const std::size_t ranks = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  const bool even = std::count(sizes.begin(), sizes.end(), sizes[0]) == std::ssize(sizes);
  const std::string lie = sizes.size() == 1
                              ? fmt::format("{} ranks on one host", ranks)
                              : fmt::format("{} ranks on {} hosts ({})", ranks, sizes.size(),
                                            even ? fmt::format("{} each", sizes[0])
                                                 : fmt::format("{}", fmt::join(sizes, ", ")));
  const auto largest = static_cast<std::uint32_t>(*std::max_element(sizes.begin(), sizes.end()));
  const std::uint64_t bytes = hosts::HostMemory::bytes_of_line({.ranks = largest});
  return fmt::format("{}; calls share up to {} MiB of memory each", lie,
                     (bytes + (1 << 20) - 1) >> 20);
}

std::string split_door(const RankInfo& lowest, std::uint16_t number) {
  return lowest.door.empty() ? "" : fmt::format("{}.{}", lowest.door, number);
}

}  // namespace tarpon
