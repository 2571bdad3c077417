// Frames, and the GSO trains made of them: the sending half that both UDP ports share.
//
// DESIGN NOTES
// 1. A train is a chain of frames and its number is that of its first frame, so trains need no
//    storage of their own and any mixture of train lengths fits.
// 2. Message headers and iovecs are scratch of one batch (TrainMessages): the kernel has
//    copied them when the system call returns, and a resend builds them anew from the chain.
// 3. Free frames are a stack, and a chain goes back so that its first frame comes out first. Frames
//    stay warm in the cache, and full packets in consecutive frames become one iovec.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/port.h"
#include "transport/ports/aligned_bytes.h"
#include "transport/ports/udp_options.h"

namespace tarpon {

/// A run of packets to one peer and of one flow, all but the last of the same size.
struct Train {
  std::uint32_t last = 0;     // frame of the last packet
  std::uint32_t segment = 0;  // datagram bytes of all packets but the last
  std::uint32_t bytes = 0;    // datagram bytes of all packets
  std::uint32_t packets = 0;
  Rank peer = 0;
  std::uint8_t flow = 0;
};

/// What became of a train that was given to the kernel.
enum class SendOutcome {
  sent,
  lost,     // counted as dropped: this peer or this datagram cannot be served now
  waiting,  // queued again: no room in the socket, or to be sent packet by packet
  fatal,    // counted as dropped: the socket is dead
};

/// Owns all frames of a port and the queue of trains to send. One thread at a time.
class TrainPool {
 public:
  static constexpr std::size_t kIovecs = 3;          // header, payload, tail
  static constexpr std::uint32_t kFirstPause = 256;  // packets
  static constexpr std::uint32_t kLongestPause = 1u << 20;

  /// `group`: packets to kAllRanks are trains to peer number `peers`.
  TrainPool(const UdpPortOptions& options, std::size_t peers, std::size_t flows = 1,
            bool group = false);

  /// Port::transmit_frames(), while nothing is queued.
  std::span<TxPacket> offer(std::size_t at_most);

  /// Port::transmit(): chains `packets`, in any order, each frame once, and queues the trains. A
  /// packet to an unknown peer, of an unknown flow or above max_payload is counted as dropped.
  void accept(std::span<TxPacket> packets);

  /// Trains to send, oldest first.
  std::size_t queued() const { return queue_end_ - queue_begin_; }
  std::uint32_t queued_train(std::size_t at) const { return queue_[(queue_begin_ + at) & mask_]; }
  std::uint32_t pop() { return queue_[queue_begin_++ & mask_]; }

  /// Ends what pop() began. `error`: the errno of the send; 0: sent. A train that the kernel cannot
  /// cut (EIO, EINVAL, EMSGSIZE) is queued as single packets, and the next packets to its peer are
  /// sent singly too: kFirstPause of them, twice as many each time that the trains tried after a
  /// pause fail too, at most kLongestPause. A train that the kernel takes halves the next pause.
  SendOutcome settle(std::uint32_t train, int error);

  /// Port::holds(). O(1) while all frames are free, else O(frames).
  bool holds(Lender lender) const;

  /// Port::drop_unsent(), while the kernel holds no train. O(queued packets). A train may hold
  /// packets of several lenders: the remaining packets stay one train.
  void drop_queued(Lender lender);

  const Train& train(std::uint32_t number) const { return trains_[number]; }

  /// Writes at most kIovecs a packet; returns their number.
  std::size_t gather(std::uint32_t train, iovec* out) const;

  std::size_t frames() const { return frames_.size(); }

  /// Port::unsent().
  std::size_t unsent() const { return frames_.size() - free_.size(); }

  /// The tx_ half of `statistics`.
  void count(PortStatistics& statistics) const;

 private:
  struct Frame {
    const std::byte* payload = nullptr;
    Lender lender = kNoLender;
    std::uint32_t length = 0;
    std::uint32_t tail = 0;
    std::uint32_t next = 0;
    bool busy = false;
  };

  // A pause of trains to one peer, in packets.
  struct Pause {
    std::uint32_t left = 0;
    std::uint32_t latest = 0;
  };

  std::byte* header(std::uint32_t frame) const { return memory_.get() + frame * stride_; }
  void push(std::uint32_t train) { queue_[queue_end_++ & mask_] = train; }
  bool joins(const Train& train, const TxPacket& packet) const;
  /// Queues a train of one packet.
  void begin_train(std::uint32_t frame, Rank peer, std::uint8_t flow);
  /// REQUIRES: all packets of `train` have the size of the first one.
  void extend(Train& train, std::uint32_t frame);
  void pause_trains(Rank peer);
  void release(std::uint32_t train);
  void split(std::uint32_t train);
  void requeue_without(std::uint32_t train, Lender lender);

  /// Index into `pauses_`; its size for an unknown rank.
  std::size_t peer_number(Rank rank) const;

  const UdpPortOptions options_;
  const std::size_t flows_;
  const std::size_t group_;  // the peer's number that stands for all ranks
  const std::size_t stride_;
  AlignedBytes memory_;
  std::vector<Frame> frames_;
  std::vector<Train> trains_;        // by first frame
  std::vector<std::uint32_t> free_;  // stack; [offered_first_, + offered_count_) is on offer
  std::vector<TxPacket> offered_;
  std::size_t offered_first_ = 0;
  std::size_t offered_count_ = 0;
  std::vector<std::uint32_t> queue_;  // ring; a power of two >= frames
  const std::size_t mask_;
  std::size_t queue_begin_ = 0;
  std::size_t queue_end_ = 0;
  std::vector<Pause> pauses_;  // by peer
  PortStatistics statistics_;  // tx_ fields
};

/// The message headers of one batch of trains; scratch, overwritten by the next batch.
class TrainMessages {
 public:
  static constexpr std::size_t kCapacity = 64;

  /// `peers`: addresses by rank, then that of the group. `frames`: packets in all messages together
  /// at most. `capacity`: trains.
  TrainMessages(std::span<const sockaddr_in> peers, std::size_t frames,
                std::size_t capacity = kCapacity);
  TrainMessages(const TrainMessages&) = delete;
  TrainMessages& operator=(const TrainMessages&) = delete;

  void clear() { size_ = iovecs_used_ = 0; }
  std::span<const sockaddr_in> destinations() const { return peers_; }
  bool full() const { return size_ == messages_.size(); }
  std::size_t size() const { return size_; }
  mmsghdr* data() { return messages_.data(); }

  /// REQUIRES: !full(), and each train at most once between two clear().
  msghdr& add(const TrainPool& pool, std::uint32_t train);

 private:
  struct alignas(cmsghdr) Control {
    char bytes[CMSG_SPACE(sizeof(std::uint16_t))];
  };

  std::vector<sockaddr_in> peers_;
  std::vector<mmsghdr> messages_;
  std::vector<Control> controls_;
  std::vector<iovec> iovecs_;
  std::size_t size_ = 0;
  std::size_t iovecs_used_ = 0;
};

}  // namespace tarpon
