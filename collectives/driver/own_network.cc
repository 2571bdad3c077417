#include "collectives/driver/own_network.h"

#include <fmt/format.h>

#include "collectives/environment/interfaces.h"

namespace tarpon::rendezvous {
namespace {

bool names_network(const CommunicatorOptions& options) {
  return !options.interface.empty() || !options.address.empty();
}

bool is_whole(const CommunicatorOptions& options) {
  return !options.interface.empty() && !options.address.empty() && options.mtu > 0;
}

Result<void> fill_from(CommunicatorOptions& options, InterfaceRequest request) {
  if (!options.interface.empty()) request.name = options.interface;
  if (!options.address.empty()) request.address = options.address;
  const auto chosen = choose_interface(std::move(request), empty_environment());
  if (!chosen) return fail(chosen.error());
  const Interface& found = chosen->interface;
  options.interface = found.name;
  options.address = found.address;
  if (options.driver.empty()) options.driver = found.driver;
  if (options.mtu == 0) options.mtu = static_cast<std::uint32_t>(found.mtu);
  return {};
}

}  // namespace

Result<void> fill_listen_address(CommunicatorOptions& options) {
  const bool listens = options.rendezvous.rank == 0 && options.rendezvous.world_size > 1 &&
                       options.rendezvous.address.starts_with("file://");
  if (!listens || !options.rendezvous.listen_address.empty() || !names_network(options)) return {};
  if (options.address.empty()) {
    if (auto filled = fill_from(options, {}); !filled) return filled;
  }
  options.rendezvous.listen_address = options.address;
  return {};
}

Result<void> fill_network(CommunicatorOptions& options, const std::string& local) {
  if (is_whole(options)) {
    if (options.driver.empty()) options.driver = interface_driver(options.interface);
    return {};
  }
  InterfaceRequest request;
  request.all_local = options.rendezvous.world_size == 1;
  // If rank 0 listens at every address, its address does not tell the network.
  const bool follows_rendezvous =
      options.address.empty() && !request.all_local && local != "0.0.0.0";
  if (follows_rendezvous) {
    auto source = source_address_towards(local);
    if (!source) return fail(source.error());
    request.host = rendezvous_host(options.rendezvous.address).value_or(local);
    request.source = *std::move(source);
  }
  return fill_from(options, std::move(request));
}

Result<void> check_reachable(const std::vector<RankInfo>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& here = ranks[rank];
    if (!is_loopback_address(here.address)) continue;
    for (std::size_t other = 0; other < ranks.size(); ++other) {
      const RankInfo& there = ranks[other];
      if (there.network == here.network) continue;
      const char* const where = there.host == here.host ? " in another network namespace" : "";
      return fail(Error::Code::invalid_argument,
                  fmt::format("rank {} on {} has the address {} ({}), which rank {} on {}{} cannot "
                              "reach: name an interface of rank {} that reaches other hosts "
                              "(--interface, TARPON_INTERFACE or the option interface), and meet "
                              "at an address of rank 0 on it",
                              rank, here.host, here.address, here.interface, other, there.host,
                              where, rank));
    }
  }
  return {};
}

}  // namespace tarpon::rendezvous
