// Chains packets into trains, and settles trains after the kernel has taken or refused them.
#include "transport/ports/udp_train.h"

#include <linux/udp.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "transport/ports/udp_socket.h"

namespace tarpon {
namespace {

// Fewer would starve small packets and ports without GSO: the number of frames follows from the
// burst of full packets.
constexpr std::size_t kFewestFrames = 64;
constexpr std::size_t kCacheLine = 64;

std::size_t frame_count(const UdpPortOptions& options) {
  const std::size_t trains = kTrainsInFlight + std::size_t{kTrainsOfLane} * (options.lanes - 1);
  return std::max<std::size_t>(kFewestFrames, gso_burst(options) * trains);
}

/// `packet`: a packet or its frame.
template <typename Packet>
std::uint32_t datagram_bytes(const Packet& packet) {
  return TARPON_HEADER_BYTES + packet.length + packet.tail;
}

}  // namespace

TrainPool::TrainPool(const UdpPortOptions& options, std::size_t peers, std::size_t flows,
                     bool group)
    : options_(options),
      flows_(flows),
      group_(peers),
      stride_(TARPON_HEADER_BYTES + options.max_payload),
      memory_(make_aligned_bytes(stride_ * frame_count(options), kCacheLine)),
      frames_(frame_count(options)),
      trains_(frames_.size()),
      offered_(frames_.size()),
      queue_(std::bit_ceil(frames_.size())),
      mask_(queue_.size() - 1),
      pauses_(peers + (group ? 1 : 0)) {
  free_.reserve(frames_.size());
  for (std::size_t frame = frames_.size(); frame-- > 0;) {
    free_.push_back(static_cast<std::uint32_t>(frame));
  }
}

std::span<TxPacket> TrainPool::offer(std::size_t at_most) {
  offered_count_ = std::min(at_most, free_.size());
  offered_first_ = free_.size() - offered_count_;
  for (std::size_t i = 0; i < offered_count_; ++i) {
    std::byte* const memory = header(free_[free_.size() - 1 - i]);
    std::byte* const room = memory + TARPON_HEADER_BYTES;
    offered_[i] = {.peer = 0, .length = 0, .header = memory, .room = room, .payload = room};
  }
  return {offered_.data(), offered_count_};
}

std::size_t TrainPool::peer_number(Rank rank) const {
  if (rank == kAllRanks) return group_;
  return rank < group_ ? rank : pauses_.size();
}

bool TrainPool::joins(const Train& train, const TxPacket& packet) const {
  const std::uint32_t bytes = datagram_bytes(packet);
  return train.peer == peer_number(packet.peer) && train.flow == packet.flow &&
         train.packets < options_.gso_segments && bytes <= train.segment &&
         train.bytes == train.packets * train.segment &&  // a shorter packet ends a train
         train.bytes + bytes <= kMaxUdpBytes;
}

void TrainPool::begin_train(std::uint32_t frame, Rank peer, std::uint8_t flow) {
  const std::uint32_t bytes = datagram_bytes(frames_[frame]);
  trains_[frame] = {
      .last = frame, .segment = bytes, .bytes = bytes, .packets = 1, .peer = peer, .flow = flow};
  push(frame);
}

void TrainPool::extend(Train& train, std::uint32_t frame) {
  frames_[train.last].next = frame;
  train.last = frame;
  train.bytes += datagram_bytes(frames_[frame]);
  ++train.packets;
}

void TrainPool::accept(std::span<TxPacket> packets) {
  std::uint32_t current = 0;
  bool open = false;
  for (const TxPacket& packet : packets) {
    const std::size_t peer = peer_number(packet.peer);
    if (peer >= pauses_.size() || packet.flow >= flows_ ||
        packet.length + packet.tail > options_.max_payload) {
      ++statistics_.tx_dropped;
      continue;
    }
    const auto offset = static_cast<std::size_t>(packet.header - memory_.get());
    const auto frame = static_cast<std::uint32_t>(offset / stride_);
    frames_[frame] = {.payload = packet.payload,
                      .lender = packet.lender,
                      .length = packet.length,
                      .tail = packet.tail,
                      .next = 0,
                      .busy = true};
    std::uint32_t& pause = pauses_[peer].left;
    if (pause > 0) {
      --pause;
    } else if (open && joins(trains_[current], packet)) {
      extend(trains_[current], frame);
      continue;
    }
    begin_train(frame, static_cast<Rank>(peer), packet.flow);
    current = frame;
    open = true;
  }
  // Frames that were offered and not used stay free, in their order.
  const auto first = free_.begin() + static_cast<std::ptrdiff_t>(offered_first_);
  const auto last = first + static_cast<std::ptrdiff_t>(offered_count_);
  free_.erase(std::remove_if(first, last, [&](auto frame) { return frames_[frame].busy; }), last);
  offered_count_ = 0;
}

SendOutcome TrainPool::settle(std::uint32_t number, int error) {
  const Train& train = trains_[number];
  switch (error) {
    case 0:
      statistics_.tx_packets += train.packets;
      statistics_.tx_bytes += train.bytes;
      ++statistics_.tx_units;
      if (train.packets > 1) pauses_[train.peer].latest /= 2;
      release(number);
      return SendOutcome::sent;
    case EAGAIN:
    case EINTR:
    case ECANCELED:
      push(number);
      return SendOutcome::waiting;
    case EIO:       // the interface cannot checksum the pieces
    case EINVAL:    // too many segments for this kernel, or it cannot cut at all
    case EMSGSIZE:  // a segment above the MTU
      if (train.packets == 1) break;
      pause_trains(train.peer);
      split(number);
      return SendOutcome::waiting;
    default:
      break;
  }
  statistics_.tx_dropped += train.packets;
  statistics_.tx_refused += train.packets;
  statistics_.send_error = error;
  release(number);
  return fatal_socket_error(error) ? SendOutcome::fatal : SendOutcome::lost;
}

void TrainPool::pause_trains(Rank peer) {
  Pause& pause = pauses_[peer];
  if (pause.left > 0) return;  // a train from before the pause
  pause.latest = std::clamp(pause.latest * 2, kFirstPause, kLongestPause);
  pause.left = pause.latest;
}

bool TrainPool::holds(Lender lender) const {
  if (unsent() == 0) return false;
  return std::any_of(frames_.begin(), frames_.end(),
                     [lender](const Frame& frame) { return frame.busy && frame.lender == lender; });
}

void TrainPool::drop_queued(Lender lender) {
  // Every train is popped once and pushed again, so the order stays.
  for (std::size_t left = queued(); left > 0; --left) requeue_without(pop(), lender);
}

void TrainPool::requeue_without(std::uint32_t number, Lender lender) {
  const Train whole = trains_[number];
  std::uint32_t dropped = 0;
  std::uint32_t kept_train = 0;
  bool kept = false;
  for (std::uint32_t i = 0, frame = number; i < whole.packets; ++i) {
    const std::uint32_t next = frames_[frame].next;
    if (frames_[frame].lender == lender) {
      frames_[frame].busy = false;
      free_.push_back(frame);
      ++dropped;
    } else if (kept) {
      extend(trains_[kept_train], frame);
    } else {
      begin_train(frame, whole.peer, whole.flow);
      kept_train = frame;
      kept = true;
    }
    frame = next;
  }
  std::reverse(free_.end() - dropped, free_.end());  // the first frame comes out first
  statistics_.tx_dropped += dropped;
}

void TrainPool::release(std::uint32_t number) {
  const std::uint32_t packets = trains_[number].packets;
  free_.resize(free_.size() + packets);
  std::uint32_t frame = number;
  for (std::size_t i = 0; i < packets; ++i) {
    frames_[frame].busy = false;
    free_[free_.size() - 1 - i] = frame;
    frame = frames_[frame].next;
  }
}

void TrainPool::split(std::uint32_t number) {
  const Rank peer = trains_[number].peer;
  const std::uint8_t flow = trains_[number].flow;
  const std::uint32_t packets = trains_[number].packets;
  std::uint32_t frame = number;
  for (std::uint32_t i = 0; i < packets; ++i) {
    begin_train(frame, peer, flow);
    frame = frames_[frame].next;
  }
}

std::size_t TrainPool::gather(std::uint32_t number, iovec* out) const {
  std::size_t used = 0;
  const auto append = [&](const std::byte* data, std::size_t bytes) {
    if (used > 0 &&
        static_cast<std::byte*>(out[used - 1].iov_base) + out[used - 1].iov_len == data) {
      out[used - 1].iov_len += bytes;
    } else {
      out[used++] = {.iov_base = const_cast<std::byte*>(data), .iov_len = bytes};
    }
  };
  std::uint32_t number_of_frame = number;
  for (std::uint32_t i = 0; i < trains_[number].packets; ++i) {
    const Frame& frame = frames_[number_of_frame];
    append(header(number_of_frame), TARPON_HEADER_BYTES);
    if (frame.length > 0) append(frame.payload, frame.length);
    // It lies before the header of the next frame, so both become one iovec.
    if (frame.tail > 0) append(header(number_of_frame) + stride_ - frame.tail, frame.tail);
    number_of_frame = frame.next;
  }
  return used;
}

void TrainPool::count(PortStatistics& statistics) const {
  statistics.tx_packets = statistics_.tx_packets;
  statistics.tx_bytes = statistics_.tx_bytes;
  statistics.tx_units = statistics_.tx_units;
  statistics.tx_dropped = statistics_.tx_dropped;
  statistics.tx_refused = statistics_.tx_refused;
  statistics.send_error = statistics_.send_error;
}

TrainMessages::TrainMessages(std::span<const sockaddr_in> peers, std::size_t frames,
                             std::size_t capacity)
    : peers_(peers.begin(), peers.end()),
      messages_(capacity),
      controls_(capacity),
      iovecs_(frames * TrainPool::kIovecs) {
  for (Control& control : controls_) {
    cmsghdr header{};
    header.cmsg_level = IPPROTO_UDP;
    header.cmsg_type = UDP_SEGMENT;
    header.cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    std::memcpy(control.bytes, &header, sizeof header);
  }
}

msghdr& TrainMessages::add(const TrainPool& pool, std::uint32_t number) {
  const Train& train = pool.train(number);
  msghdr& message = messages_[size_].msg_hdr;
  message = {};
  message.msg_name = &peers_[train.peer];
  message.msg_namelen = sizeof(sockaddr_in);
  message.msg_iov = &iovecs_[iovecs_used_];
  message.msg_iovlen = pool.gather(number, message.msg_iov);
  iovecs_used_ += message.msg_iovlen;
  if (train.packets > 1) {
    Control& control = controls_[size_];
    const auto segment = static_cast<std::uint16_t>(train.segment);
    std::memcpy(control.bytes + CMSG_LEN(0), &segment, sizeof segment);
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
  }
  ++size_;
  return message;
}

}  // namespace tarpon
