// The AF_XDP port.
//
// DESIGN NOTES
// 1. A packet to send lies in its UMEM frame from the start: the endpoint writes header and payload
//    behind the room for Ethernet, IPv4 and UDP. A payload above one chunk takes consecutive
//    chunks, so that it is written in one piece, and leaves as several descriptors.
// 2. A received frame is lent where the kernel put it. Only one of several chunks is put together
//    first: chunks end in the middle of elements.
// 3. What AF_XDP does not carry takes an ordinary UDP socket on the same address, under a port of
// its
//    own: peers on this host, peers whose MAC is not known yet, packets on queues of other ranks.
// 4. UDP checksums are 0, so the job's integrity is CRC32C: nobody below verifies anything.
#include "transport/ports/xdp_port.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "bpf/packet.h"
#include "transport/clock.h"
#include "transport/ports/address_table.h"
#include "transport/ports/mmsg_port.h"
#include "transport/ports/udp_wait.h"
#include "transport/ports/wake_event.h"
#include "xdp/attached.h"
#include "xdp/neighbours.h"
#include "xdp/queue.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kLowerHeaders =
    sizeof(ethhdr) + sizeof(iphdr) + sizeof(udphdr);  // 42 bytes
constexpr std::uint32_t kFrameOffset = 6;             // puts Tarpon's header at a multiple of 8
constexpr std::uint32_t kReceiveHeadroom = 256;  // XDP_PACKET_HEADROOM: the kernel's, in each chunk
// More would hold more bursts and fall out of the cache: the kernel walks through all of them.
constexpr std::uint32_t kReceiveFrames = 1024;
constexpr std::uint32_t kTransmitFrames = 512;
constexpr std::uint32_t kBurst = 32;        // a kick sends so many in copy mode
constexpr std::size_t kCopyInFlight = 192;  // a veth's peer has room for 256
constexpr std::size_t kChunksAtOnce = 128;
constexpr Duration kSlowPathEvery = 1ms;  // looks at the UDP socket that nothing has announced
constexpr Duration kKickAgain = 50us;
constexpr Duration kLookEvery = 20ms;  // at links and neighbours, while news come
constexpr Duration kDrainTime = 10ms;  // at the end, for what is on its way
constexpr Duration kCarrierTime = 5s;  // attaching the program restarts some adapters
constexpr Duration kResolveTime = 1s;  // for the first answers to ARP
constexpr Duration kSettleStep = 50ms;

/// Ethernet, IPv4 and UDP headers to one peer.
struct LowerHeaders {
  std::array<std::byte, kLowerHeaders> bytes{};
  std::uint32_t checksum = 0;  // of the IPv4 header, without its length
};

std::uint16_t fold(std::uint32_t sum) {
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

LowerHeaders lower_headers(const xdp::Mac& from, const xdp::Mac& to, const sockaddr_in& source,
                           const sockaddr_in& destination) {
  ethhdr ethernet{};
  std::copy(to.begin(), to.end(), ethernet.h_dest);
  std::copy(from.begin(), from.end(), ethernet.h_source);
  ethernet.h_proto = htons(ETH_P_IP);
  iphdr ip{};
  ip.version = 4;
  ip.ihl = 5;
  ip.frag_off = htons(0x4000);  // never fragment
  ip.ttl = 64;
  ip.protocol = IPPROTO_UDP;
  ip.saddr = source.sin_addr.s_addr;
  ip.daddr = destination.sin_addr.s_addr;
  udphdr udp{};
  udp.source = source.sin_port;
  udp.dest = destination.sin_port;
  LowerHeaders result;
  std::byte* at = result.bytes.data();
  const auto put = [&at](const auto& part) {
    std::memcpy(at, &part, sizeof part);
    at += sizeof part;
  };
  put(ethernet);
  put(ip);
  put(udp);
  std::array<std::uint16_t, sizeof ip / 2> words{};
  std::memcpy(words.data(), &ip, sizeof ip);
  for (const std::uint16_t word : words) result.checksum += word;
  return result;
}

/// Writes them before `datagram_bytes` (Tarpon's header and payload) of a frame.
void write_lower(std::byte* frame, const LowerHeaders& headers, std::uint32_t datagram_bytes) {
  std::memcpy(frame, headers.bytes.data(), headers.bytes.size());
  const auto put = [frame](std::size_t at, std::uint16_t value) {
    std::memcpy(frame + at, &value, sizeof value);
  };
  const std::uint16_t total =
      htons(static_cast<std::uint16_t>(sizeof(iphdr) + sizeof(udphdr) + datagram_bytes));
  put(sizeof(ethhdr) + offsetof(iphdr, tot_len), total);
  put(sizeof(ethhdr) + offsetof(iphdr, check), fold(headers.checksum + total));
  put(sizeof(ethhdr) + sizeof(iphdr) + offsetof(udphdr, len),
      htons(static_cast<std::uint16_t>(sizeof(udphdr) + datagram_bytes)));
}

bool same_address(const sockaddr_in& a, const sockaddr_in& b) {
  return a.sin_addr.s_addr == b.sin_addr.s_addr && a.sin_port == b.sin_port;
}

}  // namespace

class XdpPort final : public Port {
 public:
  XdpPort(const XdpPortOptions& options, sockaddr_in local, std::vector<sockaddr_in> peers,
          std::unique_ptr<Port> slow, FileDescriptor slow_socket, FileDescriptor event,
          xdp::Program program, xdp::Neighbours neighbours, XdpQueues queues);
  ~XdpPort() override;

  const PortCapabilities& capabilities() const override { return capabilities_; }
  std::span<TxPacket> transmit_frames(std::size_t at_most) override;
  void transmit(std::span<TxPacket> packets) override;
  std::size_t unsent() const override { return 0; }  // payloads lie in our own frames
  void drop_unsent() override {}
  std::span<const RxPacket> receive(Time now) override;
  void wait(Time now, Time until) override;
  void wake() override { event_.wake(); }
  void publish(std::uint32_t tag, std::uint32_t lowest_open) override;
  PortStatistics statistics() const override;
  std::optional<Error> failure() const override { return failure_; }

  /// Enters queues and port into the program: packets come from now on.
  Result<void> join();

  /// Waits for a carrier, then for the peers' MACs, both for a bounded time. Errors: unavailable
  /// (interface down, no carrier), io.
  Result<void> settle();

 private:
  struct Peer {
    bool direct = false;  // by AF_XDP; else by the UDP socket
    bool found = true;    // its way is known
    LowerHeaders headers;
  };
  struct Lent {
    std::size_t queue;
    std::uint32_t frame;
  };

  /// A free frame at offered_[at]; false when there is none.
  bool offer(std::size_t at);
  bool send_direct(const TxPacket& packet, std::uint32_t frame);
  void send_slowly();
  void receive_slowly(Time now);
  void look_if_due(Time now);
  /// Looks at the link and at every peer's way again.
  void look_again();
  bool all_found() const;
  void kick();
  void take_chunk(std::size_t queue, const xdp::ReceivedChunk& chunk);
  void take_frame(std::span<const std::byte> frame);
  xdp::Queue& sender() { return queues_.front(); }

  const XdpPortOptions options_;
  const std::string name_;  // of the interface; a caller may be in another network namespace
  const sockaddr_in local_;
  const std::vector<sockaddr_in> addresses_;
  const PortCapabilities capabilities_;
  std::unique_ptr<Port> slow_;
  FileDescriptor slow_socket_;  // a duplicate, to wait on
  WakeEvent event_;
  xdp::Program program_;
  xdp::Neighbours neighbours_;
  const std::vector<std::uint32_t> numbers_;  // of queues_
  const std::uint32_t index_;                 // of the port's operation windows: its first queue
  std::vector<xdp::Queue> queues_;
  std::vector<Peer> peers_;
  AddressTable sources_;

  std::vector<TxPacket> offered_;
  std::vector<std::uint32_t> offered_frames_;
  std::size_t passed_ = 0;                 // the first of offered_ have gone
  std::vector<std::size_t> slow_packets_;  // of offered_
  bool slow_peers_ = true;                 // the UDP socket serves some
  bool carrier_ = false;                   // as it was looked at last
  std::size_t in_flight_limit_;
  bool full_ = false;  // the last transmit_frames() gave none for that limit

  std::array<xdp::ReceivedChunk, kChunksAtOnce> chunks_{};
  std::vector<Lent> lent_;
  std::vector<RxPacket> batch_;
  std::vector<std::vector<std::byte>> parts_;  // by queue: of a frame whose next chunk is to come
  std::vector<std::vector<std::byte>> whole_;  // frames put together for this batch
  std::size_t whole_used_ = 0;
  bool slow_waits_ = false;  // something may wait in the UDP socket
  Time slow_looked_{};
  bool news_ = false;  // of the link or a neighbour, not looked at yet
  Time looked_{};
  std::vector<pollfd> polled_;

  PortStatistics counted_;
  std::optional<Error> failure_;
};

XdpPort::XdpPort(const XdpPortOptions& options, sockaddr_in local, std::vector<sockaddr_in> peers,
                 std::unique_ptr<Port> slow, FileDescriptor slow_socket, FileDescriptor event,
                 xdp::Program program, xdp::Neighbours neighbours, XdpQueues queues)
    : options_(options),
      name_(xdp::interface_text(options.interface)),
      local_(local),
      addresses_(std::move(peers)),
      capabilities_{.name = "xdp",
                    .max_payload = options.max_payload,
                    .gathers = false,
                    .checksums = false,
                    .burst = kBurst,
                    .receive_bytes = xdp_receive_budget(options.max_payload)},
      slow_(std::move(slow)),
      slow_socket_(std::move(slow_socket)),
      event_(std::move(event)),
      program_(std::move(program)),
      neighbours_(std::move(neighbours)),
      numbers_(std::move(queues.numbers_)),
      index_(numbers_.front()),
      queues_(std::move(queues.queues_)),
      peers_(addresses_.size()),
      sources_(addresses_),
      in_flight_limit_(queues_.front().grant().zero_copy ? kTransmitFrames : kCopyInFlight),
      parts_(queues_.size()) {
  batch_.reserve(kChunksAtOnce * 4);
}

XdpPort::~XdpPort() {
  for (const Time end = monotonic_now() + kDrainTime;
       !failure_ && sender().in_flight() > 0 && monotonic_now() < end;) {
    kick();
    sender().reap();
  }
  // Whoever comes next on this queue overwrites it anyway; the kernel takes the socket out itself.
  (void)program_.close_port({local_.sin_addr.s_addr, local_.sin_port, 0});
}

Result<void> XdpPort::join() {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    if (auto inserted = program_.insert_socket(numbers_[i], queues_[i].fd()); !inserted) {
      return inserted;
    }
    mask |= std::uint64_t{1} << numbers_[i];
  }
  return program_.open_port({local_.sin_addr.s_addr, local_.sin_port, 0},
                            {.queues = mask, .job = options_.job, .index = index_});
}

bool XdpPort::all_found() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.found; });
}

void XdpPort::look_again() {
  const auto link = neighbours_.link();
  if (!link) {
    // A question that failed says nothing of the interface: it is asked again.
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
  // Until it is back, packets are lost, and everybody's way stays as it was.
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
    if (same_address(to, local_)) continue;  // nobody sends to itself
    const auto way = neighbours_.way_to(to.sin_addr);
    // Where there is no route, it is the kernel's affair too.
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
  // Any of them may turn out to be for a peer that the UDP socket serves.
  if (slow_peers_) at_most = slow_->transmit_frames(at_most).size();
  full_ = false;
  if (sender().in_flight() + at_most > in_flight_limit_) {
    kick();
    sender().reap();
    const std::size_t room = in_flight_limit_ - sender().in_flight();
    full_ = at_most > 0 && room == 0;
    at_most = std::min(at_most, room);
  }
  // What was offered and not used is offered again: a call costs what the last one sent.
  for (std::size_t at = 0; at < passed_; ++at) {
    if (offer(at)) continue;
    const auto first = static_cast<std::ptrdiff_t>(at);
    const auto last = static_cast<std::ptrdiff_t>(passed_);
    offered_.erase(offered_.begin() + first, offered_.begin() + last);
    offered_frames_.erase(offered_frames_.begin() + first, offered_frames_.begin() + last);
    break;
  }
  passed_ = 0;
  while (offered_.size() < at_most) {
    offered_.emplace_back();
    offered_frames_.emplace_back();
    if (offer(offered_.size() - 1)) continue;
    offered_.pop_back();
    offered_frames_.pop_back();
    break;
  }
  return std::span(offered_).first(std::min(at_most, offered_.size()));
}

bool XdpPort::offer(std::size_t at) {
  const std::uint32_t frame = sender().take();
  if (frame == xdp::FramePool::kNone) return false;
  std::byte* const header = sender().data(frame) + kFrameOffset + kLowerHeaders;
  std::byte* const room = header + TARPON_HEADER_BYTES;
  offered_[at] = {.header = header, .room = room, .payload = room};
  offered_frames_[at] = frame;
  return true;
}

void XdpPort::transmit(std::span<TxPacket> packets) {
  slow_packets_.clear();
  for (std::size_t i = 0; i < packets.size(); ++i) {
    const TxPacket& packet = packets[i];
    if (packet.peer >= peers_.size() || packet.length > options_.max_payload) {
      ++counted_.tx_dropped;
      sender().give_back_unsent(offered_frames_[i]);
    } else if (!peers_[packet.peer].direct) {
      slow_packets_.push_back(i);
    } else if (!send_direct(packet, offered_frames_[i])) {
      ++counted_.tx_dropped;
    }
  }
  if (!slow_packets_.empty()) send_slowly();
  passed_ = packets.size();
  kick();
  // At once, so that the next packets take frames that are still in the cache.
  sender().reap();
}

bool XdpPort::send_direct(const TxPacket& packet, std::uint32_t frame) {
  const std::uint32_t datagram = TARPON_HEADER_BYTES + packet.length;
  write_lower(sender().data(frame) + kFrameOffset, peers_[packet.peer].headers, datagram);
  if (!sender().send(frame, kFrameOffset, kLowerHeaders + datagram)) return false;
  ++counted_.tx_packets;
  ++counted_.tx_units;
  counted_.tx_bytes += datagram;
  return true;
}

void XdpPort::send_slowly() {
  const std::span<TxPacket> frames = slow_->transmit_frames(slow_packets_.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const TxPacket& from = offered_[slow_packets_[i]];
    TxPacket& to = frames[i];
    to.peer = from.peer;
    to.length = from.length;
    to.payload = to.room;
    std::memcpy(to.header, from.header, TARPON_HEADER_BYTES);
    std::memcpy(to.room, from.payload, from.length);
  }
  counted_.tx_dropped += slow_packets_.size() - frames.size();
  if (!frames.empty()) slow_->transmit(frames);
  for (const std::size_t packet : slow_packets_) {
    sender().give_back_unsent(offered_frames_[packet]);
  }
}

/// Bounded: a kick that makes no progress ends it; what is left is kicked by the next call.
void XdpPort::kick() {
  if (sender().in_flight() == 0) return;
  for (std::size_t before = sender().in_flight();;) {
    const xdp::Kick result = sender().kick();
    ++counted_.system_calls;
    if (result == xdp::Kick::fatal) {
      failure_ = Error::system(sender().error(), "sending on " + name_);
    }
    if (result != xdp::Kick::again && result != xdp::Kick::lost) return;
    sender().reap();
    if (sender().in_flight() == 0 || sender().in_flight() >= before) return;
    before = sender().in_flight();
  }
}

std::span<const RxPacket> XdpPort::receive(Time now) {
  for (const Lent& lent : lent_) queues_[lent.queue].give_back(lent.frame);
  lent_.clear();
  batch_.clear();
  whole_used_ = 0;
  if (failure_) return {};
  for (std::size_t queue = 0; queue < queues_.size(); ++queue) {
    queues_[queue].refill();
    const std::uint32_t count = queues_[queue].receive(chunks_);
    for (std::uint32_t i = 0; i < count; ++i) take_chunk(queue, chunks_[i]);
  }
  if (slow_waits_ || now - slow_looked_ >= kSlowPathEvery || slow_->unsent() > 0) {
    receive_slowly(now);
  }
  return batch_;
}

void XdpPort::receive_slowly(Time now) {
  const std::span<const RxPacket> packets = slow_->receive(now);
  batch_.insert(batch_.end(), packets.begin(), packets.end());
  if (const auto error = slow_->failure()) failure_ = error;
  slow_waits_ = !packets.empty();
  slow_looked_ = now;
  news_ |= now - looked_ >= kLookEvery && neighbours_.changed();
  look_if_due(now);
}

void XdpPort::take_chunk(std::size_t queue, const xdp::ReceivedChunk& chunk) {
  std::vector<std::byte>& part = parts_[queue];
  if (part.empty() && !chunk.continues) {
    lent_.push_back({queue, chunk.frame});
    return take_frame(chunk.bytes);
  }
  part.insert(part.end(), chunk.bytes.begin(), chunk.bytes.end());
  queues_[queue].give_back(chunk.frame);
  if (chunk.continues) return;
  if (whole_used_ == whole_.size()) whole_.emplace_back();
  std::vector<std::byte>& whole = whole_[whole_used_++];
  whole.swap(part);
  part.clear();
  take_frame(whole);
}

void XdpPort::take_frame(std::span<const std::byte> frame) {
  tarpon_port_key key{};
  const tarpon_header* header = nullptr;
  __s32 payload_bytes = 0;
  const tarpon_verdict verdict =
      tarpon_parse_frame(frame.data(), frame.data() + frame.size(),
                         static_cast<std::uint32_t>(frame.size()), &key, &header, &payload_bytes);
  if (verdict != TARPON_VERDICT_RING || payload_bytes < 0) return;  // the program lets none through
  sockaddr_in source{};
  std::memcpy(&source.sin_addr, frame.data() + sizeof(ethhdr) + offsetof(iphdr, saddr), 4);
  std::memcpy(&source.sin_port,
              frame.data() + sizeof(ethhdr) + sizeof(iphdr) + offsetof(udphdr, source), 2);
  const std::uint32_t datagram = TARPON_HEADER_BYTES + static_cast<std::uint32_t>(payload_bytes);
  batch_.push_back({.data = frame.data() + kLowerHeaders,
                    .length = datagram,
                    .source = sources_.rank_of(source)});
  ++counted_.rx_packets;
  ++counted_.rx_units;
  counted_.rx_bytes += datagram;
}

void XdpPort::wait(Time now, Time until) {
  if (until <= now || failure_) return;
  for (xdp::Queue& queue : queues_) queue.refill();
  kick();
  std::vector<pollfd>& entries = polled_;
  entries.clear();
  for (const xdp::Queue& queue : queues_) entries.push_back({queue.fd(), POLLIN, 0});
  const auto slow_events = static_cast<short>(slow_->unsent() > 0 ? POLLIN | POLLOUT : POLLIN);
  entries.push_back({slow_socket_.get(), slow_events, 0});
  entries.push_back({neighbours_.fd(), POLLIN, 0});
  entries.push_back({event_.fd(), POLLIN, 0});
  // What the kernel had no memory for is not announced when it has, nor are completions.
  if (sender().waits_for_kick() || std::exchange(full_, false)) {
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
  slow_waits_ |= entries[entries.size() - 3].revents != 0;
}

/// A busy network has news all the time, and looking takes a while.
void XdpPort::look_if_due(Time now) {
  if (!news_ || now - looked_ < kLookEvery) return;
  news_ = false;
  look_again();
  looked_ = monotonic_now();  // the time that it takes does not count
}

void XdpPort::publish(std::uint32_t tag, std::uint32_t lowest_open) {
  program_.publish(index_, tag, lowest_open);
}

PortStatistics XdpPort::statistics() const {
  PortStatistics result = slow_->statistics();
  result.slow_path = result.rx_packets;
  result.local_path = result.tx_packets;
  result.tx_packets += counted_.tx_packets;
  result.tx_bytes += counted_.tx_bytes;
  result.tx_units += counted_.tx_units;
  result.tx_dropped += counted_.tx_dropped;
  result.rx_packets += counted_.rx_packets;
  result.rx_bytes += counted_.rx_bytes;
  result.rx_units += counted_.rx_units;
  result.system_calls += counted_.system_calls;
  result.waits += counted_.waits;
  for (const xdp::Queue& queue : queues_) {
    const auto kernel = queue.statistics();
    if (!kernel) continue;
    result.rx_overruns += kernel->rx_dropped + kernel->rx_ring_full;
  }
  return result;
}

std::uint32_t xdp_single_buffer_payload() {
  const std::uint32_t room =
      xdp::kFrameBytes - kReceiveHeadroom - kLowerHeaders - TARPON_HEADER_BYTES;
  return room / kPayloadStep * kPayloadStep;
}

std::uint64_t xdp_queue_bytes(std::uint32_t max_payload) {
  const std::uint32_t frame = kFrameOffset + kLowerHeaders + TARPON_HEADER_BYTES + max_payload;
  const std::uint32_t chunks = (frame + xdp::kFrameBytes - 1) / xdp::kFrameBytes;
  return std::uint64_t{kReceiveFrames + kTransmitFrames * chunks} * xdp::kFrameBytes;
}

std::uint64_t xdp_receive_budget(std::uint32_t max_payload) {
  const std::uint32_t datagram = TARPON_HEADER_BYTES + max_payload;
  const std::uint32_t room = xdp::kFrameBytes - kReceiveHeadroom;
  const std::uint32_t chunks = (kLowerHeaders + datagram + room - 1) / room;
  // A quarter of the frames is on its way back.
  return std::uint64_t{kReceiveFrames} * 3 / 4 / chunks * datagram;
}

Result<XdpQueues> XdpQueues::open(const XdpPortOptions& options) {
  XdpQueues result;
  Error first = Error::make(Error::Code::invalid_argument, "no receive queue was named");
  for (const std::uint32_t number : options.queues) {
    xdp::QueueOptions wanted;
    wanted.socket.interface = options.interface;
    wanted.socket.queue = number;
    wanted.socket.copy = options.copy;
    wanted.socket.busy_poll = options.busy_poll;
    wanted.receive_frames = kReceiveFrames;
    wanted.transmit_frames = kTransmitFrames;
    wanted.transmit_bytes =
        kFrameOffset + kLowerHeaders + TARPON_HEADER_BYTES + options.max_payload;
    auto queue = xdp::Queue::open(wanted);
    if (queue) {
      result.queues_.push_back(std::move(*queue));
      result.numbers_.push_back(number);
    } else if (number == options.queues.front()) {
      first = queue.error();
    }
  }
  if (result.queues_.empty()) return fail(first);
  return result;
}

bool XdpQueues::zero_copy() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const xdp::Queue& queue) { return queue.grant().zero_copy; });
}

bool XdpQueues::busy_poll() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const xdp::Queue& queue) { return queue.grant().busy_poll; });
}

bool XdpQueues::multi_buffer() const {
  return queues_.front().grant().multi_buffer;
}

Result<std::unique_ptr<Port>> make_xdp_port(UdpSocket socket, xdp::Program program,
                                            XdpQueues queues, std::vector<sockaddr_in> peers,
                                            const XdpPortOptions& options) {
  const sockaddr_in local = socket.local();
  FileDescriptor duplicate(::fcntl(socket.fd(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate) return fail_system(errno, "a second descriptor of the UDP socket");
  auto slow = make_mmsg_port(std::move(socket), peers, {.max_payload = options.max_payload});
  if (!slow) return fail(slow.error());
  auto event = WakeEvent::open();
  if (!event) return fail(event.error());
  auto neighbours = xdp::Neighbours::open(options.interface);
  if (!neighbours) return fail(neighbours.error());
  auto port = std::make_unique<XdpPort>(options, local, std::move(peers), std::move(*slow),
                                        std::move(duplicate), std::move(*event), std::move(program),
                                        std::move(*neighbours), std::move(queues));
  if (auto joined = port->join(); !joined) return fail(joined.error());
  if (auto settled = port->settle(); !settled) return fail(settled.error());
  return port;
}

}  // namespace tarpon
