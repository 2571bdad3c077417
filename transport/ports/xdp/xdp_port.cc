// The AF_XDP port.
//
// DESIGN NOTES
// 1. A packet to send lies in its UMEM frame from the start: the endpoint writes header and payload
//    behind the room for Ethernet, IPv4 and UDP. A payload above one chunk takes consecutive
//    chunks, so that it is written in one piece, and leaves as several descriptors.
// 2. A received frame is lent where the kernel put it (xdp_receiver.h).
// 3. Packets that AF_XDP does not carry take an ordinary UDP socket on the same address, which has
//    a Port of its own: packets to peers on this host or whose MAC is not known yet, and packets on
//    queues of other ranks.
// 4. UDP checksums are 0, so the job's integrity is CRC32C: nothing below verifies packets.
#include "transport/ports/xdp/xdp_port.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/clock.h"
#include "transport/ports/mmsg_port.h"
#include "transport/ports/udp_wait.h"
#include "transport/ports/xdp/xdp_port_state.h"
#include "xdp/attached.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kBurst = 32;  // packets that a kick sends in copy mode
constexpr Duration kKickAgain = 50us;
constexpr Duration kSlowPathEvery = 1ms;  // looks at the UDP socket that nothing has announced
constexpr Duration kDrainTime = 10ms;     // at the end, for packets on their way
constexpr Duration kCarrierTime = 5s;     // attaching the program restarts some adapters
constexpr Duration kResolveTime = 1s;     // for the first answers to ARP
constexpr Duration kSettleStep = 50ms;

tarpon_port_key key_of(const sockaddr_in& address) {
  return {address.sin_addr.s_addr, address.sin_port, 0};
}

bool same_address(const sockaddr_in& a, const sockaddr_in& b) {
  return a.sin_addr.s_addr == b.sin_addr.s_addr && a.sin_port == b.sin_port;
}

}  // namespace

XdpPort::XdpPort(const XdpPortOptions& options, sockaddr_in local, std::vector<sockaddr_in> peers,
                 const FlowPorts& flows, KernelPath slow, FileDescriptor event,
                 std::unique_ptr<xdp::PortAccess> access, xdp::Neighbours neighbours,
                 XdpQueues queues)
    : options_(options),
      name_(xdp::interface_text(options.interface)),
      local_(local),
      addresses_(std::move(peers)),
      capabilities_{.name = "xdp",
                    .max_payload = options.max_payload,
                    .gathers = false,
                    .checksums = false,
                    .burst = kBurst,
                    .flows = static_cast<std::uint32_t>(flows.local.size()),
                    .multicasts = slow.group.has_value(),
                    .receive_bytes = xdp_receive_budget(options.max_payload)},
      slow_(std::move(slow)),
      event_(std::move(event)),
      access_(std::move(access)),
      neighbours_(std::move(neighbours)),
      numbers_(std::move(queues.numbers_)),
      index_(numbers_.front()),
      queues_(std::move(queues.queues_)),
      peers_(addresses_.size()),
      sender_(queues_.front(), flows.local),
      receiver_(queues_, AddressTable(addresses_, flows.sources)) {}

XdpPort::~XdpPort() {
  for (const Time end = monotonic_now() + kDrainTime;
       !failure_ && sender_.in_flight() > 0 && monotonic_now() < end;) {
    kick();
    sender_.reap();
  }
  // The kernel removes the socket itself.
  access_->close_port(key_of(local_));
  close_group();
}

void XdpPort::close_group() {
  if (group_is_direct_) access_->close_port(key_of(*slow_.group));
  group_is_direct_ = false;
}

void XdpPort::end_multicast() {
  slow_.port->end_multicast();
  close_group();
  capabilities_.multicasts = false;
}

Result<void> XdpPort::join() {
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    if (auto inserted = access_->insert_socket(numbers_[i], queues_[i].fd()); !inserted) {
      return inserted;
    }
  }
  const auto link = neighbours_.link();
  if (!link) return fail(link.error());
  return open_port(link->mac);
}

Result<void> XdpPort::open_port(const xdp::Mac& mac) {
  tarpon_port_entry entry{};
  for (const std::uint32_t number : numbers_) entry.queues |= std::uint64_t{1} << number;
  entry.job = options_.job;
  entry.index = index_;
  std::copy(mac.begin(), mac.end(), entry.mac);
  mac_ = mac;
  auto opened = access_->open_port(key_of(local_), entry);
  if (!opened) return fail(opened.error());
  windows_ = std::move(*opened);
  if (!capabilities_.multicasts) return {};
  const xdp::Mac group = group_mac(slow_.group->sin_addr);
  group_headers_ = lower_headers(mac, group, local_, *slow_.group);
  std::copy(group.begin(), group.end(), entry.mac);
  // If the program has no entry for the group, its packets come by the UDP socket.
  group_is_direct_ = access_->open_group(key_of(*slow_.group), entry).has_value();
  return {};
}

bool XdpPort::all_found() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.found; });
}

void XdpPort::look_again() {
  const auto link = neighbours_.link();
  if (!link) {
    // A failed question says nothing about the interface: it is asked again.
    news_ = link.error().code != Error::Code::unavailable;
    if (!news_) failure_ = link.error();
    return;
  }
  if (!link->up) {
    failure_ = Error::make(Error::Code::unavailable, name_ + " is down");
    return;
  }
  const std::uint32_t packet = kLowerHeaders - sizeof(ethhdr) + TARPON_HEADER_BYTES;
  if (link->mtu < packet + options_.max_payload) {
    failure_ = Error::make(Error::Code::unavailable,
                           fmt::format("the MTU of {} is {} now, below the {} in use", name_,
                                       link->mtu, packet + options_.max_payload));
    return;
  }
  if (link->mac != mac_) {
    // Frames to the new MAC came by the kernel's path meanwhile.
    if (const auto opened = open_port(link->mac); !opened) {
      failure_ = opened.error();
      return;
    }
  }
  // Until the carrier is back, packets are lost, and the ways to all peers stay as they were.
  carrier_ = link->carrier;
  if (!carrier_) return;
  if (!neighbours_.read()) {
    news_ = true;
    return;
  }
  slow_peers_ = false;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    const sockaddr_in& to = addresses_[rank];
    if (same_address(to, local_)) continue;  // no rank sends to itself
    const auto way = neighbours_.way_to(to.sin_addr);
    // Packets to a peer without a route are left to the kernel too.
    if (way ? way->elsewhere : way.error().code == Error::Code::unavailable) {
      peer = {};
      slow_peers_ = true;
      continue;
    }
    peer.found = way && way->mac;
    peer.direct = peer.found;
    slow_peers_ |= !peer.direct;
    if (peer.direct) peer.headers = lower_headers(link->mac, *way->mac, local_, to);
  }
}

Result<void> XdpPort::settle() {
  look_again();
  const auto wait_for = [this](Duration limit, const auto& done) {
    for (const Time until = monotonic_now() + limit;
         !failure_ && !done() && monotonic_now() < until;) {
      wait(monotonic_now(), std::min(until, monotonic_now() + kSettleStep));
    }
  };
  wait_for(kCarrierTime, [this] { return carrier_; });
  if (!failure_ && !carrier_) {
    return fail(Error::Code::unavailable, name_ + " has no carrier");
  }
  wait_for(kResolveTime, [this] { return all_found(); });
  if (failure_) return fail(*failure_);
  return {};
}

std::span<TxPacket> XdpPort::transmit_frames(std::size_t at_most) {
  if (failure_) return {};
  // Any frame may turn out to be for a peer that the UDP socket serves.
  if (slow_peers_) at_most = slow_.port->transmit_frames(at_most).size();
  const std::span<TxPacket> frames = sender_.offer(at_most);
  look_for_failure();
  return frames;
}

void XdpPort::transmit(std::span<TxPacket> packets) {
  slow_packets_.clear();
  for (std::size_t i = 0; i < packets.size(); ++i) {
    const TxPacket& packet = packets[i];
    const bool to_all = packet.peer == kAllRanks && capabilities_.multicasts;
    if ((packet.peer >= peers_.size() && !to_all) || packet.flow >= sender_.flows() ||
        packet.length > options_.max_payload) {
      ++counted_.tx_dropped;
      sender_.give_back(i);
    } else if (!to_all && !peers_[packet.peer].direct) {
      slow_packets_.push_back(i);
    } else {
      sender_.send(i, to_all ? group_headers_ : peers_[packet.peer].headers);
    }
  }
  if (!slow_packets_.empty()) send_slowly();
  sender_.passed(packets.size());
  kick();
  // At once, so that the next packets take frames that are still in the cache.
  sender_.reap();
}

void XdpPort::send_slowly() {
  const std::span<TxPacket> frames = slow_.port->transmit_frames(slow_packets_.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const TxPacket& from = sender_.packet(slow_packets_[i]);
    TxPacket& to = frames[i];
    to.peer = from.peer;
    to.flow = from.flow;
    to.length = from.length;
    to.payload = to.room;
    std::memcpy(to.header, from.header, TARPON_HEADER_BYTES);
    std::memcpy(to.room, from.payload, from.length);
  }
  counted_.tx_dropped += slow_packets_.size() - frames.size();
  if (!frames.empty()) slow_.port->transmit(frames);
  for (const std::size_t packet : slow_packets_) sender_.give_back(packet);
}

void XdpPort::kick() {
  sender_.kick();
  look_for_failure();
}

void XdpPort::look_for_failure() {
  if (sender_.has_failed()) failure_ = Error::system(sender_.error(), "sending on " + name_);
}

std::span<const RxPacket> XdpPort::receive(Time now) {
  receiver_.release();
  if (failure_) return {};
  receiver_.receive();
  if (slow_waits_ || now - slow_looked_ >= kSlowPathEvery || slow_.port->unsent() > 0) {
    receive_slowly(now);
  }
  return receiver_.batch();
}

void XdpPort::receive_slowly(Time now) {
  const std::span<const RxPacket> packets = slow_.port->receive(now);
  receiver_.add(packets);
  if (const auto error = slow_.port->failure()) failure_ = error;
  slow_waits_ = !packets.empty();
  slow_looked_ = now;
  news_ |= now - looked_ >= kLookEvery && neighbours_.changed();
  look_if_due(now);
}

void XdpPort::wait(Time now, Time until) {
  if (until <= now || failure_) return;
  for (xdp::Queue& queue : queues_) queue.refill();
  kick();
  std::vector<pollfd>& entries = polled_;
  entries.clear();
  for (const xdp::Queue& queue : queues_) entries.push_back({queue.fd(), POLLIN, 0});
  entries.push_back({slow_.socket.get(), POLLIN, 0});
  // A negative descriptor is skipped.
  entries.push_back({capabilities_.multicasts ? slow_.group_socket.get() : -1, POLLIN, 0});
  entries.push_back({neighbours_.fd(), POLLIN, 0});
  entries.push_back({event_.fd(), POLLIN, 0});
  // The kernel does not announce when it has memory again for frames that it refused, nor
  // completions, nor room in the UDP socket of a flow.
  const bool full = sender_.take_full();
  if (sender_.waits_for_kick() || full || slow_.port->unsent() > 0) {
    until = std::min(until, now + kKickAgain);
  }
  if (news_) until = std::clamp(looked_ + kLookEvery, now, until);
  const timespec timeout = slow_waits_ ? timespec{} : wait_timeout(now, until);
  const int ready = ::ppoll(entries.data(), entries.size(), &timeout, nullptr);
  ++counted_.system_calls;
  ++counted_.waits;
  if (ready > 0 && entries.back().revents != 0) event_.drain();
  if (ready > 0) news_ |= entries[entries.size() - 2].revents != 0 && neighbours_.changed();
  look_if_due(monotonic_now());
  if (ready <= 0) return;
  slow_waits_ |= entries[queues_.size()].revents != 0 || entries[queues_.size() + 1].revents != 0;
}

/// Looks again when there is news, at most every kLookEvery: a busy network has news all the time,
/// and looking takes a while.
void XdpPort::look_if_due(Time now) {
  if (!news_ || now - looked_ < kLookEvery) return;
  news_ = false;
  look_again();
  looked_ = monotonic_now();  // the time that it takes does not count
}

void XdpPort::publish(std::uint32_t tag, std::uint32_t lowest_open) {
  windows_.publish(tag, lowest_open);
}

PortStatistics XdpPort::statistics() const {
  PortStatistics result = slow_.port->statistics();
  result.slow_path = result.rx_packets;
  result.local_path = result.tx_packets;
  const PortStatistics& sent = sender_.counted();
  const PortStatistics& received = receiver_.counted();
  result.tx_packets += sent.tx_packets;
  result.tx_bytes += sent.tx_bytes;
  result.tx_units += sent.tx_units;
  result.tx_dropped += sent.tx_dropped + counted_.tx_dropped;
  result.rx_packets += received.rx_packets;
  result.rx_bytes += received.rx_bytes;
  result.rx_units += received.rx_units;
  result.system_calls += sent.system_calls + counted_.system_calls;
  result.waits += counted_.waits;
  for (const xdp::Queue& queue : queues_) {
    const auto kernel = queue.statistics();
    if (!kernel) continue;
    result.rx_overruns += kernel->rx_dropped + kernel->rx_ring_full;
  }
  return result;
}

Result<std::unique_ptr<Port>> make_xdp_port(UdpSocket socket,
                                            std::unique_ptr<xdp::PortAccess> access,
                                            XdpQueues queues, std::vector<sockaddr_in> peers,
                                            const XdpPortOptions& options, UdpFlows flows) {
  const sockaddr_in local = socket.local();
  KernelPath slow;
  slow.socket = FileDescriptor(::fcntl(socket.fd(), F_DUPFD_CLOEXEC, 0));
  if (flows.group) {
    slow.group = flows.group->address;
    slow.group_socket = FileDescriptor(::fcntl(flows.group->socket.get(), F_DUPFD_CLOEXEC, 0));
  }
  if (!slow.socket || (slow.group && !slow.group_socket)) {
    return fail_system(errno, "a second descriptor of a UDP socket");
  }
  FlowPorts ports{{local.sin_port}, flows.sources};
  for (const UdpSocket& one : flows.sockets) ports.local.push_back(one.local().sin_port);
  auto beside =
      make_mmsg_port(std::move(socket), peers,
                     {.max_payload = options.max_payload, .job = options.job}, std::move(flows));
  if (!beside) return fail(beside.error());
  slow.port = std::move(*beside);
  auto event = WakeEvent::open_bell();
  if (!event) return fail(event.error());
  auto neighbours = xdp::Neighbours::open(options.interface, options.prefers_interface);
  if (!neighbours) return fail(neighbours.error());
  auto port = std::make_unique<XdpPort>(options, local, std::move(peers), ports, std::move(slow),
                                        std::move(*event), std::move(access),
                                        std::move(*neighbours), std::move(queues));
  if (auto joined = port->join(); !joined) return fail(joined.error());
  if (auto settled = port->settle(); !settled) return fail(settled.error());
  return port;
}

}  // namespace tarpon
