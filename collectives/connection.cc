#include "collectives/connection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "transport/clock.h"
#include "transport/ports/mmsg_port.h"
#include "transport/ports/udp_socket.h"
#include "transport/ports/uring_port.h"

namespace tarpon {
namespace {

// Larger slots gain little and make credit and parking coarse; loopback's MTU would allow 64 KiB.
constexpr std::uint32_t kMostPayload = 8896;

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

Result<std::unique_ptr<Port>> make_port(Datapath datapath, UdpSocket socket,
                                        std::vector<sockaddr_in> peers,
                                        const UdpPortOptions& options) {
  if (datapath == Datapath::uring) {
    return make_uring_port(std::move(socket), std::move(peers), options);
  }
  return make_mmsg_port(std::move(socket), std::move(peers), options);
}

/// This rank's socket and what it can do, or why it cannot.
struct Offer {
  std::optional<UdpSocket> socket;
  Datapath datapath = Datapath::mmsg;
  RankInfo info;
};

Offer make_offer(const CommunicatorOptions& options) {
  Offer offer;
  offer.info.host = host_name();
  offer.info.address = options.address;
  offer.info.interface = options.interface;
  offer.info.driver = options.driver;
  offer.info.mtu = options.mtu;
  offer.info.max_payload = std::min(kMostPayload, max_payload_for_mtu(options.mtu));
  if (offer.info.max_payload < 512) {
    offer.info.error = fmt::format("MTU {} of {} is too small: at least 604 bytes are needed",
                                   options.mtu, options.interface);
    return offer;
  }
  const Result<void> uring = options.datapath == Datapath::mmsg
                                 ? fail(Error::Code::unavailable, "not asked for")
                                 : check_uring();
  if (options.datapath == Datapath::uring && !uring) {
    offer.info.error = uring.error().message;
    return offer;
  }
  offer.datapath = uring ? Datapath::uring : Datapath::mmsg;
  offer.info.datapath = name(offer.datapath);
  offer.info.datapath_reason = options.datapath != Datapath::automatic ? "asked for"
                               : uring                                 ? "io_uring is usable"
                                                                       : uring.error().message;
  auto socket = UdpSocket::open({.address = options.address});
  if (!socket) {
    offer.info.error = socket.error().message;
    return offer;
  }
  offer.info.port = socket->port();
  offer.info.receive_bytes = socket->receive_budget();
  offer.info.checksums = options.faults.corrupt == 0 && options.faults.truncate == 0;
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

/// Whether the port works on every rank; the same answer everywhere.
Result<void> all_ready(ControlChannel& control, const Result<std::unique_ptr<Port>>& port,
                       Time deadline) {
  auto texts = control.all_gather(port ? "" : port.error().message, deadline);
  if (!texts) return fail(texts.error());
  std::string errors;
  for (std::size_t rank = 0; rank < texts->size(); ++rank) {
    if ((*texts)[rank].empty()) continue;
    errors += fmt::format("{}rank {}: {}", errors.empty() ? "" : "; ", rank, (*texts)[rank]);
  }
  if (!errors.empty()) return fail(Error::Code::unavailable, errors);
  return {};
}

/// What all ranks must choose alike follows from what all ranks know.
EngineOptions agree(const CommunicatorOptions& options, const ControlChannel& control,
                    const std::vector<RankInfo>& ranks) {
  EngineOptions agreed;
  agreed.slot_bytes = kMostPayload;
  agreed.endpoint.rank = control.rank();
  agreed.endpoint.world_size = static_cast<std::uint16_t>(control.world_size());
  agreed.endpoint.job = control.job();
  agreed.endpoint.integrity = options.integrity;
  agreed.endpoint.retain_bytes = options.retain_bytes;
  std::uint64_t receive_bytes = ranks[0].receive_bytes;
  for (const RankInfo& rank : ranks) {
    agreed.slot_bytes = std::min(agreed.slot_bytes, rank.max_payload);
    receive_bytes = std::min(receive_bytes, rank.receive_bytes);
    if (!rank.checksums && options.integrity == TARPON_INTEGRITY_UDP) {
      agreed.endpoint.integrity = TARPON_INTEGRITY_CRC32C;
    }
  }
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

  std::vector<sockaddr_in> peers;
  for (const RankInfo& rank : *ranks) {
    auto address = ipv4_address(rank.address, rank.port);
    if (!address) return fail(address.error());
    peers.push_back(*address);
  }
  auto port = make_port(offer.datapath, std::move(*offer.socket), std::move(peers),
                        {.max_payload = agreed.slot_bytes});
  if (auto ready = all_ready(**control, port, deadline); !ready) return fail(ready.error());
  if (options.faults.any()) {
    FaultOptions faults = options.faults;
    faults.seed = faults.seed * 1000003 + options.rendezvous.rank;  // each rank its own sequence
    port = std::make_unique<FaultPort>(std::move(*port), faults);
  }
  return Connection{std::move(*control), std::move(*ranks), agreed, std::move(*port)};
}

}  // namespace tarpon
