#include "collectives/connection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <utility>

#include "collectives/rendezvous/datapath_port.h"
#include "transport/clock.h"
#include "transport/ports/udp_socket.h"
#include "transport/ports/xdp_port.h"

namespace tarpon {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

/// Equal on two ranks when they share a network namespace of one running system.
std::string network_name() {
  std::array<char, 64> name{};
  if (readlink("/proc/thread-self/ns/net", name.data(), name.size() - 1) < 0) return "?";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot + " " + name.data();
}

/// This rank's socket and what it can do, or why it cannot.
struct Offer {
  std::optional<UdpSocket> socket;
  DatapathOffer datapath;
  RankInfo info;
};

Offer make_offer(const CommunicatorOptions& options) {
  Offer offer;
  offer.info.host = host_name();
  offer.info.network = network_name();
  offer.info.address = options.address;
  offer.info.interface = options.interface;
  offer.info.driver = options.driver;
  offer.info.mtu = options.mtu;
  auto datapath = offer_datapath(options.datapath, options.interface, options.mtu);
  if (!datapath) {
    offer.info.error = datapath.error().message;
    return offer;
  }
  if (options.gso_segments > 0) datapath->gso_segments = options.gso_segments;
  datapath->busy_poll = options.busy_poll;
  offer.info.datapath = name(datapath->datapath);
  offer.info.max_payload = datapath->max_payload;
  offer.info.queues = datapath->queues;
  if (offer.info.max_payload < 512) {
    offer.info.error = fmt::format("MTU {} of {} is too small: at least 604 bytes are needed",
                                   options.mtu, options.interface);
    return offer;
  }
  auto socket = UdpSocket::open({.address = options.address});
  if (!socket) {
    offer.info.error = socket.error().message;
    return offer;
  }
  const bool xdp = datapath->datapath == Datapath::xdp;
  offer.info.port = socket->port();
  offer.info.receive_bytes = socket->receive_budget();
  offer.info.checksums = !xdp && options.faults.corrupt == 0 && options.faults.truncate == 0;
  offer.datapath = std::move(*datapath);
  offer.socket = std::move(*socket);
  return offer;
}

Result<std::vector<RankInfo>> exchange(ControlChannel& control, const RankInfo& mine,
                                       Time deadline) {
  auto texts = control.all_gather(encode(mine), deadline);
  if (!texts) return fail(texts.error());
  std::vector<RankInfo> ranks;
  std::string errors;
  for (std::size_t rank = 0; rank < texts->size(); ++rank) {
    auto info = decode_rank_info((*texts)[rank]);
    if (!info) return fail(info.error());
    if (!info->error.empty()) {
      errors += fmt::format("{}rank {}: {}", errors.empty() ? "" : "; ", rank, info->error);
    }
    ranks.push_back(std::move(*info));
  }
  if (!errors.empty()) return fail(Error::Code::unavailable, errors);
  return ranks;
}

/// What all ranks must choose alike follows from what all ranks know.
EngineOptions agree(const CommunicatorOptions& options, const ControlChannel& control,
                    const std::vector<RankInfo>& ranks) {
  EngineOptions agreed;
  agreed.slot_bytes = ranks[0].max_payload;
  agreed.endpoint.rank = control.rank();
  agreed.endpoint.world_size = static_cast<std::uint16_t>(control.world_size());
  agreed.endpoint.job = control.job();
  agreed.endpoint.integrity = options.integrity;
  agreed.endpoint.retain_bytes = options.retain_bytes;
  std::uint64_t receive_bytes = ranks[0].receive_bytes;
  bool xdp = false;
  for (const RankInfo& rank : ranks) {
    agreed.slot_bytes = std::min(agreed.slot_bytes, rank.max_payload);
    receive_bytes = std::min(receive_bytes, rank.receive_bytes);
    xdp = xdp || rank.datapath == name(Datapath::xdp);
    if (!rank.checksums && options.integrity == TARPON_INTEGRITY_UDP) {
      agreed.endpoint.integrity = TARPON_INTEGRITY_CRC32C;
    }
  }
  // AF_XDP has so many frames, of whatever size: small datagrams fill them too.
  if (xdp) receive_bytes = std::min(receive_bytes, xdp_receive_budget(agreed.slot_bytes));
  // Everybody may send the initial credit of two operations unasked: it has to fit the smallest
  // receive buffer.
  const std::uint64_t unasked =
      2ull * (agreed.slot_bytes + TARPON_HEADER_BYTES) * std::max<std::size_t>(1, ranks.size() - 1);
  agreed.endpoint.initial_credit =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(receive_bytes / unasked, 2, 32));
  return agreed;
}

}  // namespace

std::string_view name(Datapath datapath) {
  switch (datapath) {
    case Datapath::automatic:
      return "auto";
    case Datapath::xdp:
      return "xdp";
    case Datapath::uring:
      return "uring";
    case Datapath::mmsg:
      return "mmsg";
  }
  return "?";
}

Result<Connection> connect_ranks(const CommunicatorOptions& options) {
  if (options.rendezvous.world_size > Connection::kMaxRanks) {
    return fail(Error::Code::invalid_argument,
                fmt::format("world size {}: at most {} ranks are supported",
                            options.rendezvous.world_size, Connection::kMaxRanks));
  }
  const Time deadline = after(monotonic_now(), options.rendezvous.timeout);
  RendezvousOptions rendezvous = options.rendezvous;
  rendezvous.agreed += fmt::format("\nintegrity={}", static_cast<int>(options.integrity));
  auto control = ControlChannel::join(rendezvous);
  if (!control) return fail(control.error());

  Offer offer = make_offer(options);
  auto ranks = exchange(**control, offer.info, deadline);
  if (!ranks) return fail(ranks.error());
  const EngineOptions agreed = agree(options, **control, *ranks);

  auto made = make_port(std::move(offer.datapath), std::move(*offer.socket), *ranks, agreed);
  if (made) {
    offer.info.datapath = name(made->datapath);
    offer.info.datapath_reason = made->reason;
  } else {
    offer.info.error = made.error().message;
  }
  // Again: nobody begins before every port works, and all know what the others took.
  ranks = exchange(**control, offer.info, deadline);
  if (!ranks) return fail(ranks.error());
  std::unique_ptr<Port> port = std::move(made->port);
  if (options.faults.any()) {
    FaultOptions faults = options.faults;
    faults.seed = faults.seed * 1000003 + options.rendezvous.rank;  // each rank its own sequence
    port = std::make_unique<FaultPort>(std::move(port), faults);
  }
  return Connection{std::move(*control), std::move(*ranks), agreed, std::move(port)};
}

}  // namespace tarpon
