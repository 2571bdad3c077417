#include "collectives/driver/host_sharing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "collectives/hosts/host_memory.h"

namespace tarpon {

hosts::HostLayout layout_of(const std::vector<RankInfo>& ranks) {
  std::vector<std::string> networks;
  for (const RankInfo& rank : ranks) networks.push_back(rank.network);
  return hosts::HostLayout::by(networks);
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
  const std::uint64_t bytes = hosts::HostMemory::bytes({.ranks = largest});
  return fmt::format("{}; {} share at most {} MiB of memory", lie,
                     sizes.size() == 1 ? "they" : "those of a host", (bytes + (1 << 20) - 1) >> 20);
}

std::string split_door(const RankInfo& lowest, std::uint16_t number) {
  return lowest.door.empty() ? "" : fmt::format("{}.{}", lowest.door, number);
}

}  // namespace tarpon
