// A port moves datagrams for one endpoint. Start here to write a new datapath.
//
// One thread at a time drives a port (transmit, receive, wait), and another one may drive it next;
// only wake() may be called from any thread. Nothing that a port has armed interrupts the system
// calls that a driver makes elsewhere. Batches amortise every virtual call. Nothing here knows the
// protocol beyond the size of its header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "bpf/wire.h"
#include "transport/rank.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

/// The payload of a full packet, with its tag if it has one, is a multiple of this many bytes, so
/// that no element is ever torn.
inline constexpr std::uint32_t kPayloadStep = 64;

/// Identifies whose memory a payload lies in. The port only compares it. An endpoint has one lender
/// for each operation (lender_of()).
using Lender = std::uint64_t;

/// The payload lies in the packet's own `room`; the port never has to give it back.
inline constexpr Lender kNoLender = 0;

/// A datagram to send: 64 bytes at `header`, then `length` bytes at `payload`, then the last `tail`
/// bytes of `room`.
/// The port owns header and room; the endpoint fills them, and sets every other field, between
/// transmit_frames() and transmit().
struct TxPacket {
  Rank peer = 0;                       // kAllRanks: PortCapabilities::multicasts
  std::uint8_t flow = 0;               // below PortCapabilities::flows
  std::uint32_t length = 0;            // bytes of payload
  std::uint32_t tail = 0;              // bytes; 0, except after memory that is lent
  std::byte* header = nullptr;         // TARPON_HEADER_BYTES, 8-byte aligned, owned by the port
  std::byte* room = nullptr;           // max_payload bytes after the header, owned by the port
  const std::byte* payload = nullptr;  // == room, or memory that is lent (gathering ports only)
  Lender lender = kNoLender;           // whose memory `payload` is; kNoLender: it is `room`
};

/// A received datagram, header and payload in one piece, unaligned. Lent by the port until its next
/// receive().
struct RxPacket {
  const std::byte* data = nullptr;
  std::uint32_t length = 0;    // bytes, header included
  Rank source = kUnknownRank;  // by source address, never by what the packet claims
};

/// What a port can do; constant over its life, but for Port::end_multicast().
struct PortCapabilities {
  std::string_view name;            // "uring", "mmsg", "simulated", ...
  std::uint32_t max_payload = 0;    // bytes after the header in the largest datagram it carries
  bool gathers = false;             // takes TxPacket::payload outside `room` without a copy
  bool checksums = false;           // the kernel verifies the UDP checksum of what arrives
  std::uint32_t burst = 1;          // packets of one size to one peer that travel as one unit
  std::uint32_t flows = 1;          // source ports that it sends from; packets from different ones
                                    // may overtake one another
  bool multicasts = false;          // takes packets for kAllRanks
  bool in_order = true;             // packets leave it in the order of transmit()
  std::uint64_t receive_bytes = 0;  // datagram bytes that may wait in its receive buffers
};

/// Counters of a port since its start.
struct PortStatistics {
  std::uint64_t tx_packets = 0;
  std::uint64_t tx_bytes = 0;    // datagram bytes, header included
  std::uint64_t tx_units = 0;    // sends: a GSO train counts once
  std::uint64_t tx_dropped = 0;  // given to the port and never sent: refused, or given up
  std::uint64_t tx_refused = 0;  // of them: refused by the kernel
  int send_error = 0;            // errno of the last datagram that the kernel refused; 0: none
  std::uint64_t rx_packets = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t rx_units = 0;     // receives: a GRO train counts once
  std::uint64_t rx_overruns = 0;  // datagrams that our own full buffers lost (SO_RXQ_OVFL, rings)
  std::uint64_t rx_refused = 0;   // from strangers: refused by the kernel before they took room in
                                  // a receive buffer (a GRO train counts once); at most 1 ms old
  std::uint64_t rx_forged = 0;    // keyed jobs: without a right tag (SealedPort)
  std::uint64_t rx_replayed = 0;  // keyed jobs: came before, or far too late
  std::uint64_t system_calls = 0;
  std::uint64_t waits = 0;       // times wait() slept
  std::uint64_t rx_stalls = 0;   // times a receive ring ran dry; the socket kept what came
  std::uint64_t slow_path = 0;   // packets received by the UDP socket beside an AF_XDP one
  std::uint64_t local_path = 0;  // packets sent by that UDP socket
};

/// Names what ends the sleep of a port (transport/ports/wake_event.h).
using BellName = std::array<char, 8>;

class Port {
 public:
  virtual ~Port() = default;

  virtual const PortCapabilities& capabilities() const = 0;

  /// Up to `at_most` frames to fill; fewer, or none, is back-pressure. The frames stay valid until
  /// the next call of transmit_frames().
  virtual std::span<TxPacket> transmit_frames(std::size_t at_most) = 0;

  /// Sends `packets`, a prefix of the last transmit_frames(); frames not passed are free again.
  /// Runs of packets to one peer and of one flow travel as one unit where all but the last have
  /// the same size.
  /// Never blocks. A lent payload has to stay valid until holds() is false for its lender.
  virtual void transmit(std::span<TxPacket> packets) = 0;

  /// Packets accepted by transmit() that wait in the port, of all lenders.
  virtual std::size_t unsent() const = 0;

  /// Whether packets of `lender` wait in the port, which then still points into its memory.
  /// Always false in ports that copy or send within transmit(). O(1) when nothing waits.
  /// REQUIRES: lender != kNoLender.
  virtual bool holds(Lender lender) const = 0;

  /// Drops the waiting packets of `lender` (tx_dropped): holds(lender) is false afterwards. All
  /// other packets stay, in their order. Does nothing in ports whose holds() is always false.
  /// REQUIRES: lender != kNoLender.
  virtual void drop_unsent(Lender lender) = 0;

  /// Returns packets that have arrived, up to a bounded batch; empty when none waits. Never blocks.
  /// Takes back the packets that the last call returned.
  virtual std::span<const RxPacket> receive(Time now) = 0;

  /// Sleeps until something can be received, unsent() can shrink, wake() is called, or `until`.
  /// May return early. Simulated ports return at once.
  virtual void wait(Time now, Time until) = 0;

  /// Ends a wait() that is going on, or the next one. Any thread.
  virtual void wake() = 0;

  /// The bell that ends a wait() from another process; zeros: the port has none, and cannot ring.
  virtual BellName bell() const { return {}; }
  /// Ends a wait() of the port with that bell, in this network namespace. Never blocks.
  /// REQUIRES: bell() is not zeros.
  virtual void ring(const BellName& /*bell*/) {}

  /// Ends PortCapabilities::multicasts: no packet for all ranks is sent or received any more.
  virtual void end_multicast() {}

  /// Tells the port that first-time DATA of `tag` below operation `lowest` is useless from now on.
  /// A port that can drops it before it costs anything.
  virtual void publish(std::uint32_t /*tag*/, std::uint32_t /*lowest*/) {}

  virtual PortStatistics statistics() const = 0;

  /// Set once the port can no longer work (interface gone, socket error): it sends nothing more,
  /// and reads nothing that is lent.
  virtual std::optional<Error> failure() const { return std::nullopt; }
};

}  // namespace tarpon
