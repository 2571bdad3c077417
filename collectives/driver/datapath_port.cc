#include "collectives/driver/datapath_port.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "collectives/options.h"
#include "collectives/rank_list.h"
#include "transport/integrity.h"
#include "transport/ports/mmsg_port.h"
#include "transport/ports/udp_options.h"
#include "transport/ports/uring/uring_port.h"
#include "transport/ports/xdp/xdp_port.h"
#include "transport/rank_mask.h"
#include "transport/rung.h"
#include "xdp/attached.h"
#include "xdp/base/processors.h"
#include "xdp/base/system_limits.h"
#include "xdp/interface.h"
#include "xdp/interface_features.h"
#include "xdp/neighbours.h"
#include "xdp/port_access.h"
#include "xdp/served_port.h"

namespace tarpon {
namespace {

static_assert(CommunicatorOptions::kMaxLanes == kMaxLanes);

std::uint32_t payload_for(std::uint32_t mtu) {
  return std::min(kLargestSlot, max_payload_for_mtu(mtu));
}

DatapathOffer socket_offer(std::string reason, std::uint32_t mtu) {
  const auto uring = check_uring();
  if (uring)
    return {.datapath = Datapath::uring, .reason = reason, .max_payload = payload_for(mtu)};
  return {.datapath = Datapath::mmsg,
          .reason = fmt::format("{}; {}", reason, uring.error().message),
          .max_payload = payload_for(mtu)};
}

/// Without a program.
DatapathOffer xdp_offer(const std::string& interface, std::uint32_t mtu, unsigned index) {
  const auto features = xdp::interface_features(index);
  // Most drivers have no zero-copy for frames of several buffers.
  const bool one_buffer = !xdp::multi_buffer_supported() ||
                          (features && features->zero_copy && features->zero_copy_segments < 2);
  std::uint32_t payload = payload_for(mtu);
  if (one_buffer) payload = std::min(payload, xdp_single_buffer_payload());
  return {.datapath = Datapath::xdp,
          .reason = "",
          .max_payload = payload,
          .queues = xdp::receive_queues(interface)};
}

/// By the helper of the interface, which this user may have in place of privileges.
Result<DatapathOffer> served_offer(const std::string& interface, std::uint32_t mtu,
                                   unsigned index) {
  const auto mode = xdp::look_for_helper(interface);
  if (!mode) return fail(mode.error());
  DatapathOffer offer = xdp_offer(interface, mtu, index);
  offer.served = true;
  offer.reason = "asked for, by tarpon xdp serve";
  if (mode->copies) offer.copy = xdp::CopyMode::copy;
  return offer;
}

/// By a program of this process, or one that it may join.
Result<DatapathOffer> own_offer(const std::string& interface, std::uint32_t mtu, unsigned index) {
  auto program = xdp::Program::use(index, xdp::AttachMode::native);
  if (!program) return fail(program.error());
  DatapathOffer offer = xdp_offer(interface, mtu, index);
  offer.program.emplace(std::move(*program));
  offer.reason = "asked for";
  // Below a program in skb mode the kernel may grant zero-copy that then cannot send.
  const auto attached = xdp::attached_to(index);
  if (!attached) return fail(attached.error());
  const bool generic = *attached && (*attached)->mode == xdp::AttachMode::generic;
  if (generic) offer.copy = xdp::CopyMode::copy;
  return offer;
}

Result<DatapathOffer> asked_xdp_offer(const std::string& interface, std::uint32_t mtu) {
  const auto index = xdp::interface_index(interface);
  if (!index) return fail(index.error());
  auto offer = own_offer(interface, mtu, *index);
  if (offer || offer.error().code != Error::Code::permission) return offer;
  if (xdp::helper_is_there(interface)) return served_offer(interface, mtu, *index);
  Error error = offer.error();
  error.message += fmt::format("; or have root run tarpon xdp serve {}", interface);
  return fail(std::move(error));
}

Result<DatapathOffer> automatic_offer(const std::string& interface, std::uint32_t mtu) {
  const RungFacts facts = read_rung_facts(interface, mtu);
  const RungChoice choice = choose_rung(facts);
  DatapathOffer offer{.datapath = choice.rung == Rung::uring ? Datapath::uring : Datapath::mmsg,
                      .reason = choice.reason,
                      .max_payload = payload_for(mtu)};
  if (choice.rung != Rung::xdp) return offer;
  const auto index = xdp::interface_index(interface);
  if (!index) return fail(index.error());
  DatapathOffer direct = xdp_offer(interface, mtu, *index);
  direct.reason = choice.reason;
  direct.copy = xdp::CopyMode::zero_copy;
  direct.served = facts.served.has_value();
  if (direct.served) return direct;
  auto program = xdp::Program::find(*index);
  if (!program) return socket_offer(program.error().message, mtu);
  direct.program.emplace(std::move(*program));
  return direct;
}

/// Names the ranks of other hosts to which packets go through the kernel, since their route leaves
/// by another interface: "; to rank 1 through the kernel: ..."; empty: none.
std::string kernel_path_text(const XdpPortOptions& options, const std::vector<RankInfo>& ranks,
                             Rank own) {
  auto neighbours = xdp::Neighbours::open(options.interface, options.prefers_interface);
  if (!neighbours) return "";
  std::uint64_t through_kernel = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto address = ipv4_address(ranks[rank].address, 0);
    if (!address || ranks[rank].network == ranks[own].network) continue;
    const auto way = neighbours->way_to(address->sin_addr);
    if (way && way->elsewhere) through_kernel |= bit(static_cast<Rank>(rank));
  }
  if (through_kernel == 0) return "";
  return fmt::format("; to {} through the kernel: the route does not leave by {}",
                     rendezvous::rank_list(ranks_of(through_kernel)), ranks[own].interface);
}

/// Opens the queues of `wanted`; if none of them is free, because another job has taken them, opens
/// any other free queue.
Result<XdpQueues> claim(const XdpPortOptions& wanted, std::uint32_t all) {
  if (wanted.queues.empty()) {
    return fail(
        Error::Code::unavailable,
        fmt::format("{0} has {1} receive queue{2}, fewer than ranks: give it more (ethtool -L "
                    "{0} combined N)",
                    xdp::interface_text(wanted.interface), all, all == 1 ? "" : "s"));
  }
  auto queues = XdpQueues::open(wanted);
  for (std::uint32_t other = all; !queues && other-- > 0;) {
    XdpPortOptions next = wanted;
    next.queues = {other};
    if (auto opened = XdpQueues::open(next)) return opened;
  }
  return queues;
}

Result<std::vector<sockaddr_in>> addresses_of(const std::vector<RankInfo>& ranks) {
  std::vector<sockaddr_in> addresses;
  for (const RankInfo& rank : ranks) {
    auto address = ipv4_address(rank.address, rank.port);
    if (!address) return fail(address.error());
    addresses.push_back(*address);
  }
  return addresses;
}

Result<std::vector<FlowSource>> flow_sources(const std::vector<RankInfo>& ranks) {
  std::vector<FlowSource> sources;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::uint16_t port : ranks[rank].flow_ports) {
      auto address = ipv4_address(ranks[rank].address, port);
      if (!address) return fail(address.error());
      sources.push_back({*address, static_cast<Rank>(rank)});
    }
  }
  return sources;
}

/// Threads that a rank starts after its port: mesh, progress, flight recorder.
constexpr unsigned kLaterThreads = 3;

/// The lanes of this rank: as many as asked for, or by the processors of its machine.
std::uint32_t choose_lanes(std::uint32_t wanted, const std::vector<RankInfo>& ranks,
                           const EndpointOptions& own) {
  if (wanted != 0) return wanted;
  if (ranks.size() == 1) return 1;  // it sends nothing
  const auto machine = [&ranks](std::size_t rank) {
    const std::string_view network = ranks[rank].network;
    return network.substr(0, network.find(' '));
  };
  std::size_t sharing = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    sharing += machine(rank) == machine(own.rank);
  sharing = std::max<std::size_t>(sharing, own.siblings);  // they may be in other jobs
  const std::uint32_t lanes = lanes_by_processors(usable_processors(), sharing);
  return lanes > 1 && !check_threads(lanes - 1 + kLaterThreads) ? 1 : lanes;
}

/// Makes a port by io_uring or, where io_uring is refused, by sendmmsg.
Result<DatapathPort> make_any_port(std::string reason, UdpSocket socket,
                                   std::vector<sockaddr_in> peers, const UdpPortOptions& options,
                                   UdpFlows flows) {
  std::string against_uring;
  auto port = make_uring_or_mmsg_port(std::move(socket), std::move(peers), options,
                                      std::move(flows), against_uring);
  if (!port) return fail(port.error());
  if (against_uring.empty()) {
    return DatapathPort{std::move(*port), Datapath::uring, std::move(reason), options.lanes};
  }
  // io_uring was usable when this rank looked. Another process may have locked the memory since.
  reason = reason.starts_with(kUringUsable) ? against_uring + reason.substr(kUringUsable.size())
                                            : fmt::format("{}; {}", reason, against_uring);
  return DatapathPort{std::move(*port), Datapath::mmsg, std::move(reason), options.lanes};
}

Result<DatapathPort> make_socket_port(DatapathOffer& offer, UdpSocket socket,
                                      std::vector<sockaddr_in> peers, const UdpPortOptions& options,
                                      UdpFlows flows) {
  if (offer.datapath == Datapath::uring && !offer.required) {
    return make_any_port(std::move(offer.reason), std::move(socket), std::move(peers), options,
                         std::move(flows));
  }
  auto port = offer.datapath == Datapath::uring
                  ? make_uring_port(std::move(socket), std::move(peers), options, std::move(flows))
                  : make_mmsg_port(std::move(socket), std::move(peers), options, std::move(flows));
  if (!port) return fail(port.error());
  return DatapathPort{std::move(*port), offer.datapath, std::move(offer.reason), options.lanes};
}

/// How the port that `socket` is bound to takes its place in the program.
Result<std::unique_ptr<xdp::PortAccess>> access_for(DatapathOffer& offer,
                                                    const std::string& interface, int socket,
                                                    std::uint32_t job) {
  if (!offer.served) return std::make_unique<xdp::OwnAccess>(std::move(*offer.program));
  return xdp::ServedPort::claim(interface, socket, job);
}

/// The error of a rank that cannot have the datapath that the user asked for.
Error refused(Error error) {
  error.message += "; or let it take another one: --datapath auto, TARPON_DATAPATH=auto";
  return error;
}

}  // namespace

Result<DatapathOffer> offer_datapath(Datapath wanted, const std::string& interface,
                                     std::uint32_t mtu) {
  switch (wanted) {
    case Datapath::automatic:
      return automatic_offer(interface, mtu);
    case Datapath::xdp:
      return asked_xdp_offer(interface, mtu);
    case Datapath::uring:
      if (const auto usable = check_uring(); !usable) return fail(usable.error());
      break;
    case Datapath::mmsg:
      break;
  }
  return DatapathOffer{.datapath = wanted, .reason = "asked for", .max_payload = payload_for(mtu)};
}

std::uint32_t lanes_by_processors(double processors, std::size_t ranks) {
  const double left = processors / static_cast<double>(std::max<std::size_t>(1, ranks)) - 1;
  return static_cast<std::uint32_t>(std::clamp(std::ceil(left / 2), 1.0, double{kMaxLanes}));
}

LinkSharing sharing_of(Rank rank, const std::vector<RankInfo>& ranks) {
  const RankInfo& mine = ranks[rank];
  LinkSharing sharing{.place = 0, .ranks = 0};
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    const RankInfo& info = ranks[other];
    if (info.network != mine.network || info.interface != mine.interface ||
        info.datapath != mine.datapath) {
      continue;
    }
    if (other < rank) ++sharing.place;
    ++sharing.ranks;
  }
  return sharing;
}

std::vector<std::uint32_t> queue_share(LinkSharing sharing, std::uint32_t queues) {
  std::vector<std::uint32_t> share;
  for (std::uint32_t queue = sharing.place; queue < std::min(queues, TARPON_MAX_QUEUES);
       queue += sharing.ranks) {
    share.push_back(queue);
  }
  return share;
}

Result<DatapathPort> make_port(DatapathOffer offer, UdpSocket socket,
                               const std::vector<RankInfo>& ranks, const EngineOptions& agreed) {
  auto peers = addresses_of(ranks);
  if (!peers) return fail(peers.error());
  auto sources = flow_sources(ranks);
  if (!sources) return fail(sources.error());
  UdpFlows flows{std::move(offer.flows), std::move(*sources), std::move(offer.group)};
  const std::uint32_t max_payload = agreed.slot_bytes + tag_bytes(agreed.endpoint.integrity);
  const UdpPortOptions udp{.max_payload = max_payload,
                           .gso_segments = offer.gso_segments,
                           .job = agreed.endpoint.job,
                           .lanes = choose_lanes(offer.lanes, ranks, agreed.endpoint)};
  if (offer.datapath != Datapath::xdp) {
    return make_socket_port(offer, std::move(socket), std::move(*peers), udp, std::move(flows));
  }
  const Rank rank = agreed.endpoint.rank;
  const std::string& interface = ranks[rank].interface;
  const auto index = xdp::interface_index(interface);
  if (!index) return fail(index.error());
  auto access = access_for(offer, interface, socket.fd(), agreed.endpoint.job);
  if (!access && offer.required) return fail(refused(access.error()));
  if (!access) {
    return make_any_port(access.error().message, std::move(socket), std::move(*peers), udp,
                         std::move(flows));
  }
  const LinkSharing sharing = offer.sharing.value_or(sharing_of(rank, ranks));
  const XdpPortOptions options{.interface = *index,
                               .queues = queue_share(sharing, ranks[rank].queues),
                               .job = agreed.endpoint.job,
                               .max_payload = max_payload,
                               .copy = offer.copy,
                               .busy_poll = offer.busy_poll,
                               .prefers_interface = offer.prefers_interface,
                               .source = (*access)->source()};
  auto queues = claim(options, std::min(offer.queues, TARPON_MAX_QUEUES));
  if (!queues && offer.required) return fail(refused(queues.error()));
  if (!queues) {
    return make_any_port(queues.error().message, std::move(socket), std::move(*peers), udp,
                         std::move(flows));
  }
  const std::string polling = !offer.busy_poll      ? ""
                              : queues->busy_poll() ? ", busy polling"
                                                    : ", busy polling without effect (no NAPI)";
  const std::string reason = fmt::format(
      "{}: {}{} on {}, queue {}{}{}", offer.reason, queues->zero_copy() ? "zero-copy" : "copy mode",
      queues->multi_buffer() ? ", several buffers a frame" : "", interface,
      fmt::join(queues->numbers(), " and "), polling, kernel_path_text(options, ranks, rank));
  auto port = make_xdp_port(std::move(socket), std::move(*access), std::move(*queues),
                            std::move(*peers), options, std::move(flows));
  if (!port) return fail(port.error());
  return DatapathPort{std::move(*port), Datapath::xdp, reason, 1};
}

}  // namespace tarpon
