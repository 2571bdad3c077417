#include "collectives/driver/offer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <utility>

#include "collectives/driver/own_network.h"
#include "transport/integrity.h"
#include "transport/ports/udp_flows.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kMinMtu = 576;
static_assert(max_payload_for_mtu(kMinMtu) == TARPON_MIN_PAYLOAD);

/// The threads that a rank needs: for the control mesh, for progress, and a number of lanes that is
/// given. Lanes by default are as many as can be started.
unsigned threads_of(const CommunicatorOptions& options) {
  const std::uint32_t senders = std::max(options.lanes, 1u) - 1;
  if (options.rendezvous.world_size == 1) return senders;
  return senders + (options.progress_thread ? 2 : 1);
}

/// Opens a UDP socket at one of the ports that the options allow.
Result<UdpSocket> open_udp(const CommunicatorOptions& options, UdpSocketOptions wanted) {
  return open_in(options.ports, "UDP port", [&](std::uint16_t port) {
    wanted.port = port;
    return UdpSocket::open(wanted);
  });
}

/// Opens the further flows. A trial makes do with one flow if the kernel refuses more.
Result<void> open_flows_for(const CommunicatorOptions& options, DatapathOffer& datapath,
                            std::string& one_flow) {
  if (options.flows > TARPON_MAX_FLOWS || std::popcount(options.flows) > 1) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} flows: give 1, 2, 4 or 8, or 0 for by trial", options.flows));
  }
  auto flows =
      open_flows(options.address, options.flows == 0 ? kTrialFlows : options.flows,
                 [&](const UdpSocketOptions& wanted) { return open_udp(options, wanted); });
  if (flows) {
    datapath.flows = std::move(*flows);
  } else if (options.flows == 0) {
    one_flow = "; one flow: " + flows.error().message;
  } else {
    return fail(flows.error());
  }
  return {};
}

/// Offers the datapath that is asked for, or another one where the datapath may change.
Result<DatapathOffer> offer_datapath_for(const CommunicatorOptions& options) {
  auto asked = offer_datapath(options.datapath, options.interface, options.mtu);
  if (asked || !options.datapath_may_change) return asked;
  auto other = offer_datapath(Datapath::automatic, options.interface, options.mtu);
  if (other) other->reason = fmt::format("{}; {}", asked.error().message, other->reason);
  return other;
}

/// Opens the door for the other ranks of this host.
void offer_memory(const CommunicatorOptions& options, Offer& offer) {
  if (options.datapath != Datapath::automatic) {
    offer.info.wants_network = fmt::format("datapath {} is asked for", name(options.datapath));
  } else if (options.max_bytes_per_second > 0) {
    offer.info.wants_network = "the rate is limited";
  }
  if (!options.hosts) {
    offer.info.shares_nothing = "TARPON_HOSTS=off (--hosts off)";
  } else if (options.faults.any()) {
    offer.info.shares_nothing = "faults of the network are injected";
  } else if (auto door = hosts::open_door()) {
    offer.info.door = door->name;
    offer.host_door = *std::move(door);
  } else {
    offer.info.shares_nothing = door.error().message;
  }
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

std::string network_name() {
  std::array<char, 64> name{};
  if (readlink("/proc/thread-self/ns/net", name.data(), name.size() - 1) < 0) return "?";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot + " " + name.data();
}

Offer make_offer(CommunicatorOptions& options, const std::string& local_address) {
  Offer offer;
  offer.info.host = host_name();
  offer.info.user = ::geteuid();
  offer.info.network = network_name();
  if (auto found = rendezvous::fill_network(options, local_address); !found) {
    offer.info.refuse(found.error());
    return offer;
  }
  // A rank that finds out later that it may start no thread leaves the others waiting.
  if (auto allowed = check_threads(threads_of(options)); !allowed) {
    offer.info.refuse(allowed.error());
    return offer;
  }
  offer.info.address = options.address;
  offer.info.interface = options.interface;
  offer.info.driver = options.driver;
  offer.info.mtu = options.mtu;
  auto datapath = offer_datapath_for(options);
  if (!datapath) {
    offer.info.refuse(datapath.error());
    return offer;
  }
  if (options.gso_segments > 0) datapath->gso_segments = options.gso_segments;
  datapath->lanes = options.lanes;
  datapath->busy_poll = options.busy_poll;
  datapath->required = options.datapath != Datapath::automatic && !options.datapath_may_change;
  offer.info.datapath = name(datapath->datapath);
  offer.info.max_payload =
      datapath->max_payload - std::min(datapath->max_payload, tag_bytes(options.integrity));
  offer.info.queues = datapath->queues;
  if (options.mtu < kMinMtu) {
    offer.info.refuse(
        Error::make(Error::Code::invalid_argument,
                    fmt::format("MTU {} of {} is too small: at least {} bytes are needed",
                                options.mtu, options.interface, kMinMtu)));
    return offer;
  }
  UdpSocketOptions socket_options{.address = options.address};
  if (options.receive_buffer_bytes > 0) {
    socket_options.receive_buffer = options.receive_buffer_bytes;
  }
  auto socket = open_udp(options, socket_options);
  if (!socket) {
    offer.info.refuse(socket.error());
    return offer;
  }
  if (auto opened = open_flows_for(options, *datapath, offer.one_flow); !opened) {
    offer.info.refuse(opened.error());
    return offer;
  }
  for (const UdpSocket& flow : datapath->flows) offer.info.flow_ports.push_back(flow.port());
  auto door = mesh::open_door(options.address, options.ports);
  if (!door) {
    offer.info.refuse(door.error());
    return offer;
  }
  offer.door = std::move(*door);
  offer.info.control_port = offer.door.port;
  offer_memory(options, offer);
  const bool xdp = datapath->datapath == Datapath::xdp;
  offer.info.port = socket->port();
  offer.info.receive_bytes = socket->receive_budget();
  offer.info.checksums = !xdp && options.faults.corrupt == 0 && options.faults.truncate == 0;
  offer.datapath = std::move(*datapath);
  offer.socket = std::move(*socket);
  return offer;
}

}  // namespace tarpon
