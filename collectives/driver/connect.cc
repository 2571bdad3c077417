#include "collectives/driver/connect.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "collectives/driver/datapath_port.h"
#include "collectives/driver/host_sharing.h"
#include "collectives/driver/offer.h"
#include "collectives/driver/outgoing_interface.h"
#include "collectives/driver/own_network.h"
#include "collectives/environment/launcher.h"
#include "collectives/hosts/host_lines.h"
#include "collectives/membership/socket_network.h"
#include "collectives/rank_list.h"
#include "collectives/rendezvous/multicast_probe.h"
#include "collectives/rendezvous/path_probe.h"
#include "collectives/report_text.h"
#include "collectives/version.h"
#include "transport/clock.h"
#include "transport/integrity.h"
#include "transport/ports/fault_port.h"
#include "transport/ports/narrow_port.h"
#include "transport/ports/sealed_port.h"
#include "transport/ports/xdp/xdp_port.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

// A rank that gets no core for less time is no exception.
constexpr Duration kLeastSilence = 10ms;

std::vector<LossBudget> budgets_of(const CommunicatorOptions& options) {
  if (!options.loss_budgets.empty()) return options.loss_budgets;
  return {LossBudget::usual(options.mechanisms.loss_target)};
}

/// Checks the payloads that the ranks offer, from which the size of slots is chosen. `tag_bytes`:
/// of a packet.
Result<void> check_payloads(const std::vector<RankInfo>& ranks, std::uint32_t tag_bytes) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::uint32_t payload = ranks[rank].max_payload;
    const bool whole = (payload + tag_bytes) % kPayloadStep == 0;
    const bool large = payload + tag_bytes >= TARPON_MIN_PAYLOAD;
    if (large && payload <= kLargestSlot && whole) continue;
    return fail(Error::Code::mismatch,
                fmt::format("rank {} offers slots of {} bytes: this version has multiples of {}{} "
                            "from {} to {}",
                            rank, payload, kPayloadStep,
                            tag_bytes == 0 ? "" : fmt::format(", less {},", tag_bytes),
                            TARPON_MIN_PAYLOAD, kLargestSlot));
  }
  return {};
}

Result<std::vector<RankInfo>> exchange(ControlChannel& control, const RankInfo& mine,
                                       Time deadline) {
  auto texts = control.all_gather(encode(mine), deadline);
  if (!texts) return fail(texts.error());
  std::vector<RankInfo> ranks;
  std::vector<std::string> errors;
  Error::Code code = Error::Code::unavailable;  // of the lowest rank that has an error
  for (const std::string& text : *texts) {
    auto info = decode_rank_info(text);
    if (!info) return fail(info.error());
    const bool first = std::all_of(errors.begin(), errors.end(),
                                   [](const std::string& error) { return error.empty(); });
    if (first && !info->error.empty()) code = info->error_code;
    errors.push_back(info->error);
    ranks.push_back(std::move(*info));
  }
  if (auto failed = errors_text(errors); !failed.empty()) return fail(code, std::move(failed));
  const std::uint32_t tag_bytes = control.packet_key() ? TARPON_TAG_BYTES : 0;
  if (auto good = check_payloads(ranks, tag_bytes); !good) return fail(good.error());
  if (auto good = rendezvous::check_reachable(ranks); !good) return fail(good.error());
  return ranks;
}

/// The largest payload that the interfaces of all ranks carry.
std::uint32_t smallest_payload(const std::vector<RankInfo>& ranks) {
  std::uint32_t payload = ranks[0].max_payload;
  for (const RankInfo& rank : ranks) payload = std::min(payload, rank.max_payload);
  return payload;
}

/// How many ranks receive over the link of this one. Ranks of one host have no link between them.
std::uint32_t siblings_of(const hosts::HostLayout& layout, Rank rank) {
  if (layout.count() == 1) return 1;
  return static_cast<std::uint32_t>(layout.hosts[layout.host_of(rank)].size());
}

/// Derives the settings that all ranks must share from the data that all ranks have.
EngineOptions agree(const CommunicatorOptions& options, const ControlChannel& control,
                    const std::vector<RankInfo>& ranks, std::uint32_t slot_bytes,
                    std::uint32_t siblings) {
  EngineOptions agreed;
  agreed.slot_bytes = slot_bytes;
  agreed.endpoint.rank = control.rank();
  agreed.endpoint.world_size = static_cast<std::uint16_t>(control.world_size());
  agreed.endpoint.job = control.job();
  agreed.endpoint.integrity = options.integrity;
  agreed.endpoint.retain_bytes = options.retain_bytes;
  agreed.endpoint.kept_tags = hosts::kOwnTags;
  agreed.endpoint.silent_after = options.silent_after;
  agreed.endpoint.detects_silence = options.progress_thread;
  agreed.endpoint.inflow = options.mechanisms.inflow;
  agreed.endpoint.siblings =
      siblings > 0 ? siblings : siblings_of(layout_of(ranks), control.rank());
  agreed.endpoint.flows = options.flows;
  agreed.endpoint.sending = options.mechanisms.sending;
  agreed.endpoint.max_bytes_per_second = options.max_bytes_per_second;
  agreed.mechanisms = options.mechanisms;
  std::uint64_t receive_bytes = ranks[0].receive_bytes;
  bool xdp = false;
  for (const RankInfo& rank : ranks) {
    receive_bytes = std::min(receive_bytes, rank.receive_bytes);
    xdp = xdp || rank.datapath == name(Datapath::xdp);
    if (!rank.checksums && options.integrity == TARPON_INTEGRITY_UDP) {
      agreed.endpoint.integrity = TARPON_INTEGRITY_CRC32C;
    }
  }
  if (control.packet_key()) agreed.endpoint.integrity = TARPON_INTEGRITY_KEYED;
  // AF_XDP has a fixed number of frames: a small datagram takes a whole one too.
  const std::uint32_t packet_bytes = agreed.slot_bytes + tag_bytes(agreed.endpoint.integrity);
  if (xdp) receive_bytes = std::min(receive_bytes, xdp_receive_budget(packet_bytes));
  // Every rank may send the initial credit of two operations unasked: it has to fit the smallest
  // receive buffer.
  const std::uint64_t unasked =
      2ull * (packet_bytes + TARPON_HEADER_BYTES) * std::max<std::size_t>(1, ranks.size() - 1);
  agreed.endpoint.initial_credit =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(receive_bytes / unasked, 2, 32));
  return agreed;
}

/// Connects this rank with all others. Leaves a quarter of the time for telling all ranks which of
/// them could not connect. Ends at once if another rank fails.
Result<std::unique_ptr<Membership>> connect_mesh(mesh::Door door, ControlChannel& control,
                                                 const CommunicatorOptions& options,
                                                 const EndpointOptions& self,
                                                 const std::vector<RankInfo>& ranks,
                                                 Time deadline) {
  std::vector<sockaddr_in> doors;
  for (const RankInfo& rank : ranks) {
    auto address = ipv4_address(rank.address, rank.control_port);
    if (!address) return fail(address.error());
    doors.push_back(*address);
  }
  auto tls = TlsContext::make(options.rendezvous.secret.get());
  if (!tls) return fail(tls.error());
  auto network = mesh::SocketNetwork::make(std::move(door), std::move(doors), *std::move(tls));
  if (!network) return fail(network.error());
  auto membership =
      std::make_unique<Membership>(membership_options(options, self), *std::move(network));
  const Time now = monotonic_now();
  auto opened = membership->open(now + (deadline - std::min(now, deadline)) / 4 * 3,
                                 [&control] { return control.is_broken(); });
  if (!opened) return fail(opened.error());
  return membership;
}

/// Whether `error` of connect_mesh() has its cause in this process alone.
bool is_of_this_rank(const Error& error) {
  return error.code != Error::Code::timeout && error.code != Error::Code::unavailable;
}

Error of_rank(Rank rank, const Error& error) {
  return Error::make(error.code, fmt::format("rank {}: {}", rank, with_limit(error).message));
}

/// Makes this rank's port. If that fails, returns nullptr and puts the error into the offer.
std::unique_ptr<Port> open_port(Offer& offer, const CommunicatorOptions& options,
                                const ControlChannel& control, const std::vector<RankInfo>& ranks,
                                const EngineOptions& agreed) {
  auto made = make_port(std::move(offer.datapath), std::move(*offer.socket), ranks, agreed);
  if (!made) {
    offer.info.refuse(made.error());
    return nullptr;
  }
  offer.info.datapath = name(made->datapath);
  offer.info.lanes = made->lanes;
  offer.info.datapath_reason = made->reason + offer.one_flow;
  if (!offer.outgoing.empty()) offer.info.datapath_reason += "; " + offer.outgoing;
  std::unique_ptr<Port> port = std::move(made->port);
  if (options.faults.any()) {
    FaultOptions faults = options.faults;
    faults.seed = faults.seed * 1000003 + options.rendezvous.rank;  // each rank its own sequence
    port = std::make_unique<FaultPort>(std::move(port), faults);
  }
  if (!control.packet_key()) return port;
  return std::make_unique<SealedPort>(
      std::move(port), SealOptions{.key = *control.packet_key(),
                                   .rank = control.rank(),
                                   .ranks = control.world_size(),
                                   .encrypts = options.integrity == TARPON_INTEGRITY_SEALED});
}

/// Names two ranks whose interfaces have different MTUs; empty where all are alike.
std::string narrow_interface(const std::vector<RankInfo>& ranks, std::uint32_t slot_bytes) {
  const auto [least, most] = extreme_mtus(ranks);
  const RankInfo &narrow = ranks[least], &wide = ranks[most];
  if (narrow.mtu == wide.mtu || narrow.max_payload >= wide.max_payload) return "";
  return fmt::format(
      "slots shrink to {} bytes: the interface of rank {} has MTU {}, that of rank {} MTU {}",
      slot_bytes, least, narrow.mtu, most, wide.mtu);
}

/// Chooses the size of slots that the paths carry.
Result<void> fit_slots(rendezvous::PathProbe& probe, Time deadline, std::uint32_t siblings,
                       Connection& connection) {
  auto size = probe.finish(connection.ranks, deadline);
  if (!size) return fail(size.error());
  connection.agreed =
      agree(connection.options, *connection.control, connection.ranks, size->slot_bytes, siblings);
  connection.shrunk_slots = size->reason.empty()
                                ? narrow_interface(connection.ranks, size->slot_bytes)
                                : std::move(size->reason);
  if (size->slot_bytes < connection.port->capabilities().max_payload) {
    connection.port = std::make_unique<NarrowPort>(std::move(connection.port), size->slot_bytes);
  }
  return {};
}

/// Why a rank cannot multicast; empty if it can. Joins the group of the job then.
std::string prepare_multicast(Offer& offer, const ControlChannel& control,
                              const std::vector<RankInfo>& ranks) {
  if (ranks.size() < 3) return "has one peer only, so a packet cannot serve several";
  const RankInfo& mine = ranks[control.rank()];
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank != control.rank() && ranks[rank].network == mine.network) {
      return fmt::format("shares the network interfaces of rank {}", rank);
    }
  }
  auto group =
      join_group(*offer.socket, group_address(control.public_id(), ranks[0].port), control.job());
  if (!group) return group.error().message;
  offer.datapath.group = std::move(*group);
  return "";
}

/// Finds out whether the job multicasts.
Result<void> try_multicast(const std::string& refusal, Time deadline, Connection& connection) {
  auto reason = rendezvous::probe_multicast(*connection.port, *connection.control,
                                            connection.agreed.slot_bytes, refusal, deadline);
  if (!reason) return fail(reason.error());
  connection.agreed.endpoint.multicast = reason->empty();
  if (!reason->empty()) connection.port->end_multicast();
  connection.multicast = reason->empty() ? "on" : "off: " + *reason;
  return {};
}

// ---- memory that ranks of a host share

/// Shares memory with the other ranks. Null if a rank cannot; the info of the offer says why if it
/// is this one.
std::unique_ptr<hosts::SharedHost> share_memory(Offer& offer, ControlChannel& control,
                                                const std::vector<RankInfo>& ranks, Port* port,
                                                Time deadline) {
  hosts::HostLayout layout = layout_of(ranks);
  if (layout.count() == ranks.size() || !against_sharing(ranks).empty()) return nullptr;
  const Rank lowest = layout.hosts[layout.host_of(control.rank())].front();
  hosts::SharedHost::Options options{.layout = std::move(layout),
                                     .self = control.rank(),
                                     .job = control.job(),
                                     .lowest_door = ranks[lowest].door,
                                     .port = port,
                                     .is_broken = [&control] { return control.is_broken(); }};
  auto shared = hosts::SharedHost::share(*std::move(offer.host_door), options,
                                         std::min(deadline, monotonic_now() + kSharingPatience));
  if (shared) return *std::move(shared);
  offer.info.shares_nothing = shared.error().message;
  return nullptr;
}

/// Says whether the ranks share memory, from the descriptions after they tried.
void settle_sharing(std::unique_ptr<hosts::SharedHost> host, Connection& connection) {
  const hosts::HostLayout layout = layout_of(connection.ranks);
  if (layout.count() == connection.ranks.size()) return;
  const std::string against = against_sharing(connection.ranks);
  if (!against.empty() || host == nullptr) {
    connection.hosts = "off: " + against;
    return;
  }
  connection.hosts = sharing_text(layout);
  connection.host = std::move(host);
}

/// Writes each budget as "FROM_STEP:SKIP_ABOVE:HALT_ABOVE", for example "1000:0.05:0.5".
std::string text(const std::vector<LossBudget>& budgets) {
  std::string result;
  for (const LossBudget& one : budgets) {
    result += fmt::format("{}{}:{}:{}", result.empty() ? "" : ",", one.from_step, one.skip_above,
                          one.halt_above);
  }
  return result;
}

Result<void> check(const CommunicatorOptions& options, std::uint32_t most) {
  if (options.rendezvous.world_size > most) {
    return fail(Error::Code::invalid_argument,
                fmt::format("world size {}: at most {} ranks are supported",
                            options.rendezvous.world_size, most));
  }
  if (options.rendezvous.world_size > 0 &&
      options.rendezvous.rank >= options.rendezvous.world_size) {
    return fail(Error::Code::invalid_argument,
                fmt::format("rank {} is out of range: {} ranks are numbered 0 to {}",
                            options.rendezvous.rank, options.rendezvous.world_size,
                            options.rendezvous.world_size - 1));
  }
  if (options.silent_after < kLeastSilence) {
    return fail(Error::Code::invalid_argument,
                fmt::format("silent_after (--silent-after) is {}: give {} or more",
                            rendezvous::duration_text(options.silent_after),
                            rendezvous::duration_text(kLeastSilence)));
  }
  if (options.lanes > CommunicatorOptions::kMaxLanes) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} lanes: give 1 to {}, or 0 for by processors", options.lanes,
                            CommunicatorOptions::kMaxLanes));
  }
  if (options.dead_after <= Duration::zero()) {
    return fail(Error::Code::invalid_argument, "dead_after: give a positive duration");
  }
  return Flight::check(options.flight);
}

/// A secret and what protects packets have to fit. The plain default becomes keyed with a secret.
Result<void> settle_integrity(CommunicatorOptions& options) {
  if (options.rendezvous.secret == nullptr) {
    if (!needs_secret(options.integrity)) return {};
    return fail(Error::Code::invalid_argument,
                "keyed or sealed packets (--integrity) need a secret: give all ranks the same "
                "--secret-file (TARPON_SECRET_FILE)");
  }
  if (options.integrity == TARPON_INTEGRITY_UDP) options.integrity = TARPON_INTEGRITY_KEYED;
  if (needs_secret(options.integrity)) return {};
  return fail(Error::Code::invalid_argument,
              "a job with a secret has keyed or sealed packets (--integrity), no others");
}

/// Joins the job with the options that all ranks must have alike.
Result<std::unique_ptr<ControlChannel>> join(CommunicatorOptions& options) {
  if (auto filled = rendezvous::fill_listen_address(options); !filled) return fail(filled.error());
  RendezvousOptions rendezvous = options.rendezvous;
  rendezvous.listen_ports = options.ports;
  rendezvous.agreed =
      fmt::format("version={}\nwire={}\n{}", kVersion, TARPON_WIRE_VERSION, rendezvous.agreed);
  rendezvous.agreed += fmt::format("\nintegrity={}", name(options.integrity));
  rendezvous.agreed += fmt::format("\nloss_budgets={}", text(options.loss_budgets));
  rendezvous.agreed +=
      fmt::format("\ndead_after={}", rendezvous::duration_text(options.dead_after));
  rendezvous.agreed +=
      fmt::format("\nsilent_after={}", rendezvous::duration_text(options.silent_after));
  rendezvous.agreed += fmt::format("\norder={}", order_name(options.mechanisms));
  rendezvous.agreed += fmt::format("\nmechanisms={}", describe(options.mechanisms));
  rendezvous.agreed += fmt::format("\nmulticast={}", options.multicast ? "on" : "off");
  rendezvous.agreed += fmt::format("\nTARPON_HOSTS={}", options.hosts ? "on" : "off");
  rendezvous.agreed += fmt::format("\nTARPON_SHARES={}", options.learn_shares ? "auto" : "even");
  return ControlChannel::join(rendezvous);
}

/// Joins the job. A private directory in which the ranks meet exists until rank 0 has met them, or
/// a rank has failed to.
Result<std::unique_ptr<ControlChannel>> meet(CommunicatorOptions& options) {
  if (auto made = make_rendezvous(options.rendezvous.address); !made) return fail(made.error());
  auto control = join(options);
  if (!control || options.rendezvous.rank == 0) remove_rendezvous(options.rendezvous.address);
  return control;
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

MembershipOptions membership_options(const CommunicatorOptions& options,
                                     const EndpointOptions& self) {
  return {.rank = self.rank,
          .world_size = self.world_size,
          .job = self.job,
          .communicator = self.communicator,
          .budgets = budgets_of(options),
          .coded = options.mechanisms.codec == CodecRule::on,
          .codec_adapts = options.mechanisms.codec == CodecRule::automatic,
          .dead_after = options.dead_after};
}

Result<std::unique_ptr<ControlChannel>> meet_ranks(CommunicatorOptions& options,
                                                   std::uint32_t most) {
  if (auto good = check(options, most); !good) {
    remove_rendezvous(options.rendezvous.address);
    return fail(good.error());
  }
  if (auto settled = settle_integrity(options); !settled) {
    remove_rendezvous(options.rendezvous.address);
    return fail(settled.error());
  }
  std::string& address = options.rendezvous.address;
  if (!address.empty()) address = with_scheme(address);
  return meet(options);
}

Result<Connection> connect_ranks(const CommunicatorOptions& given, SlotSizing sizing,
                                 const PartOfGrid& part) {
  CommunicatorOptions options = given;
  const Time deadline = after(monotonic_now(), options.rendezvous.timeout);
  auto control = meet_ranks(options, Connection::kMaxRanks);
  if (!control) return fail(control.error());

  const bool names_interface = !options.interface.empty();
  Offer offer = make_offer(options, (*control)->local_address());
  auto ranks = exchange(**control, offer.info, deadline);
  if (!ranks) return fail(ranks.error());
  const EngineOptions agreed =
      agree(options, **control, *ranks, smallest_payload(*ranks), part.siblings);
  if (part.siblings > 0) offer.datapath.sharing = LinkSharing{part.place, part.siblings};
  if (names_interface && offer.socket) {
    offer.outgoing = send_by_interface(offer, *ranks, (*control)->rank());
  }
  const std::string no_multicast =
      options.multicast && offer.socket ? prepare_multicast(offer, **control, *ranks) : "";
  std::unique_ptr<Port> port = open_port(offer, options, **control, *ranks, agreed);
  // Every rank has its port before it answers here.
  auto membership =
      connect_mesh(std::move(offer.door), **control, options, agreed.endpoint, *ranks, deadline);
  if (!membership) {
    // The other ranks wait for this one in connect_mesh(), and only the control channel tells them.
    if (is_of_this_rank(membership.error())) {
      return fail(
          (*control)->give_up(of_rank(options.rendezvous.rank, membership.error()), deadline));
    }
    if (port) offer.info.refuse(membership.error());
  }
  std::optional<rendezvous::PathProbe> probe;
  if (membership && port) {
    probe.emplace(*port, **control, agreed.slot_bytes).begin();
  }
  std::unique_ptr<hosts::SharedHost> host =
      share_memory(offer, **control, *ranks, membership ? port.get() : nullptr, deadline);
  // Exchanges again: no rank begins before every port works, and all know the others' data paths.
  ranks = exchange(**control, offer.info, deadline);
  if (!ranks) return fail(ranks.error());
  Connection connection{.options = std::move(options),
                        .control = std::move(*control),
                        .ranks = std::move(*ranks),
                        .agreed = agreed,
                        .shrunk_slots = {},
                        .multicast = {},
                        .hosts = {},
                        .host = {},
                        .port = std::move(port),
                        .membership = *std::move(membership)};
  if (probe) {
    auto fitted = fit_slots(*probe, deadline, part.siblings, connection);
    const bool tolerated = sizing == SlotSizing::by_path_or_interface && probe->blocked();
    if (!fitted && !tolerated) return fail(fitted.error());
  }
  settle_sharing(std::move(host), connection);
  if (connection.options.multicast) {
    if (auto tried = try_multicast(no_multicast, deadline, connection); !tried) {
      return fail(tried.error());
    }
  }
  return connection;
}

}  // namespace tarpon
