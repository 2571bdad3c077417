// Which ranks of a communicator share a host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/rank.h"

namespace tarpon::hosts {

/// A value. Alike on all ranks.
struct HostLayout {
  /// By host, in the order of their lowest ranks: the ranks of the host, ascending.
  std::vector<std::vector<Rank>> hosts;

  std::size_t count() const { return hosts.size(); }

  /// How many ranks of each host add data up: as many as the smallest host has.
  std::uint32_t owners() const {
    std::size_t least = hosts.front().size();
    for (const std::vector<Rank>& host : hosts) least = std::min(least, host.size());
    return static_cast<std::uint32_t>(least);
  }

  /// The host of `rank`. REQUIRES: it has one.
  std::uint32_t host_of(Rank rank) const {
    std::uint32_t host = 0;
    while (std::find(hosts[host].begin(), hosts[host].end(), rank) == hosts[host].end()) ++host;
    return host;
  }

  /// Puts ranks with equal `keys` on one host. `keys`: by rank.
  template <typename Key>
  static HostLayout by(const std::vector<Key>& keys) {
    HostLayout layout;
    std::vector<Key> known;
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      const auto place = std::find(known.begin(), known.end(), keys[rank]);
      const auto host = static_cast<std::size_t>(place - known.begin());
      if (place == known.end()) {
        known.push_back(keys[rank]);
        layout.hosts.emplace_back();
      }
      layout.hosts[host].push_back(static_cast<Rank>(rank));
    }
    return layout;
  }
};

}  // namespace tarpon::hosts
