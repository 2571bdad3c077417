// Headers of the packets of this rank.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bpf/wire.h"
#include "transport/counters.h"
#include "transport/endpoint.h"
#include "transport/peers/peer_clocks.h"
#include "transport/rate/inflow.h"
#include "transport/tags/tag_history.h"

namespace tarpon {

/// What the headers of a run of packets have in common beyond PacketWriter::header().
struct RunFields {
  std::uint32_t slot = 0;  // of the first packet; the others follow
  std::uint8_t flags = 0;
  std::uint64_t contributors = 0;
};

class PacketWriter {
 public:
  /// All arguments outlive the writer. Packets are counted in `counters`.
  PacketWriter(const EndpointOptions& options, const PeerClocks& clocks, TagHistory& tags,
               const Inflow& inflow, EndpointCounters& counters)
      : options_(options), clocks_(clocks), tags_(tags), inflow_(inflow), counters_(counters) {}

  /// Returns the header fields that packets to `peer` that leave now have in common. Packets to
  /// kAllRanks have no echo.
  tarpon_header header(Time now, Rank peer, std::uint8_t type, std::uint32_t tag,
                       std::uint32_t operation, std::uint8_t stage) const;
  /// Adds the epoch that the operation runs in.
  static void mark_epoch(const OperationEpoch& epoch, tarpon_header& header);

  /// Makes `frame` a packet to `peer` without a payload, on the first flow. It lends no memory.
  static void address(TxPacket& frame, Rank peer) {
    frame.peer = peer;
    frame.flow = 0;
    frame.payload = frame.room;
    frame.lender = kNoLender;
    frame.length = 0;
  }

  /// Writes the headers of `frames`, whose payload, length, peer and flow are set: with slots and
  /// packet numbers that follow one another, and the check sums.
  void write(tarpon_header common, const RunFields& fields, std::span<TxPacket> frames);

 private:
  const EndpointOptions& options_;
  const PeerClocks& clocks_;
  TagHistory& tags_;  // remembers the latest lookup
  const Inflow& inflow_;
  EndpointCounters& counters_;
  std::uint32_t next_packet_ = 0;
};

}  // namespace tarpon
