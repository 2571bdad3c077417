// How the ranks of a job form a grid of hosts and places.
//
// Every host has as many ranks. Its ranks have places 0, 1, ... in rising order. The ranks of one
// place, one of each host, are a rail. Hosts count in the order of their lowest ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/rank.h"
#include "xdp/base/result.h"

namespace tarpon::grid {

/// A value. Alike on all ranks.
class GridLayout {
 public:
  /// Contributor masks of a host's ranks, and of a rail's, have 64 bits.
  static constexpr std::uint32_t kMost = 64;

  /// `hosts`: by rank, equal for ranks of one host. `names`: by rank, for errors. Errors:
  /// invalid_argument, in one line: too many hosts, or ranks of a host, or hosts of different
  /// sizes.
  static Result<GridLayout> make(const std::vector<std::string>& hosts,
                                 const std::vector<std::string>& names);

  std::uint32_t hosts() const { return static_cast<std::uint32_t>(ranks_.size()); }
  std::uint32_t places() const { return static_cast<std::uint32_t>(ranks_.front().size()); }
  std::uint32_t world_size() const { return hosts() * places(); }

  std::uint32_t host_of(Rank rank) const { return (*host_of_)[rank]; }
  std::uint32_t place_of(Rank rank) const { return place_of_[rank]; }
  /// The ranks of a host, by place.
  const std::vector<Rank>& host(std::uint32_t host) const { return ranks_[host]; }
  /// The ranks of a rail, by host.
  std::vector<Rank> rail(std::uint32_t place) const;

  /// The host of each rank, for reports.
  std::shared_ptr<const std::vector<std::uint8_t>> hosts_by_rank() const { return host_of_; }
  /// One byte for each rank: its host.
  std::string encode() const { return {host_of_->begin(), host_of_->end()}; }
  /// Inverts encode(). Errors: invalid_argument, of bytes that no grid has.
  static Result<GridLayout> decode(const std::string& bytes);

 private:
  std::vector<std::vector<Rank>> ranks_;                      // by host, then by place
  std::shared_ptr<const std::vector<std::uint8_t>> host_of_;  // by rank
  std::vector<std::uint8_t> place_of_;                        // by rank
};

}  // namespace tarpon::grid
