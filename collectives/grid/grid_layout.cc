#include "collectives/grid/grid_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/hosts/host_layout.h"

namespace tarpon::grid {
namespace {

constexpr std::size_t kNamedHosts = 8;

/// "node1 has 16, node2 has 15", of the first hosts.
std::string sizes_text(const hosts::HostLayout& layout, const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t host = 0; host < std::min(kNamedHosts, layout.count()); ++host) {
    const std::vector<Rank>& ranks = layout.hosts[host];
    text += fmt::format("{}{} has {} (rank {}{})", text.empty() ? "" : ", ", names[ranks[0]],
                        ranks.size(), ranks[0], ranks.size() > 1 ? ", ..." : "");
  }
  if (layout.count() <= kNamedHosts) return text;
  return text + fmt::format(" and {} hosts more", layout.count() - kNamedHosts);
}

}  // namespace

Result<GridLayout> GridLayout::make(const std::vector<std::string>& hosts,
                                    const std::vector<std::string>& names) {
  hosts::HostLayout layout = hosts::HostLayout::by(hosts);
  const auto wrong = [&](const std::string& remedy) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} ranks on {} host{}: {}: {}", hosts.size(), layout.count(),
                            layout.count() == 1 ? "" : "s", remedy, sizes_text(layout, names)));
  };
  std::size_t most = 0, least = hosts.size();
  for (const std::vector<Rank>& ranks : layout.hosts) {
    most = std::max(most, ranks.size());
    least = std::min(least, ranks.size());
  }
  if (most > kMost) return wrong(fmt::format("start at most {} on a host", kMost));
  if (layout.count() > kMost) {
    return wrong(fmt::format("a job of more than {} ranks spans at most {} hosts", kMost, kMost));
  }
  if (most != least) {
    return wrong(fmt::format("a job of more than {} ranks needs as many on each host", kMost));
  }
  GridLayout grid;
  std::vector<std::uint8_t> host_of(hosts.size());
  grid.place_of_.resize(hosts.size());
  for (std::size_t host = 0; host < layout.count(); ++host) {
    for (std::size_t place = 0; place < most; ++place) {
      const Rank rank = layout.hosts[host][place];
      host_of[rank] = static_cast<std::uint8_t>(host);
      grid.place_of_[rank] = static_cast<std::uint8_t>(place);
    }
  }
  grid.host_of_ = std::make_shared<const std::vector<std::uint8_t>>(std::move(host_of));
  grid.ranks_ = std::move(layout.hosts);
  return grid;
}

std::vector<Rank> GridLayout::rail(std::uint32_t place) const {
  std::vector<Rank> rail;
  rail.reserve(ranks_.size());
  for (const std::vector<Rank>& host : ranks_) rail.push_back(host[place]);
  return rail;
}

Result<GridLayout> GridLayout::decode(const std::string& bytes) {
  std::vector<std::string> hosts;
  hosts.reserve(bytes.size());
  for (const char host : bytes) hosts.emplace_back(1, host);
  return make(hosts, hosts);
}

}  // namespace tarpon::grid
