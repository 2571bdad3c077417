// Headers of the packets of this rank.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bpf/wire.h"
#include "transport/counters.h"
#include "transport/endpoint.h"
#include "transport/endpoint/inflow.h"
#include "transport/endpoint/peer_clocks.h"
#include "transport/endpoint/tag_history.h"
#include "transport/integrity.h"

namespace tarpon {

/// What differs between the headers of one train, besides its length and number.
struct SlotFields {
  std::uint32_t slot = 0;
  std::uint8_t flags = 0;
  std::uint8_t flow = 0;  // of the packet, not of the header
  std::uint64_t contributors = 0;
};

class PacketWriter {
 public:
  /// All arguments outlive the writer. Packets are counted in `counters`.
  PacketWriter(const EndpointOptions& options, const PeerClocks& clocks, TagHistory& tags,
               const Inflow& inflow, EndpointCounters& counters)
      : options_(options), clocks_(clocks), tags_(tags), inflow_(inflow), counters_(counters) {}

  /// Returns the header fields that packets to `peer` that leave now have in common.
  tarpon_header header(Time now, Rank peer, std::uint8_t type, std::uint32_t tag,
                       std::uint32_t operation, std::uint8_t stage) const;
  /// Adds the epoch that the operation runs in.
  static void mark_epoch(const OperationEpoch& epoch, tarpon_header& header);

  /// Writes the header of `frame`, whose payload, length, peer and flow are set, with the next
  /// packet number and the check sum.
  void write(const tarpon_header& common, const SlotFields& fields, TxPacket& frame);

 private:
  const EndpointOptions& options_;
  const PeerClocks& clocks_;
  TagHistory& tags_;  // remembers the latest lookup
  const Inflow& inflow_;
  EndpointCounters& counters_;
  std::uint32_t next_packet_ = 0;
};

// In the header because it runs once a packet.
inline void PacketWriter::write(const tarpon_header& common, const SlotFields& fields,
                                TxPacket& frame) {
  // What differs from packet to packet goes straight into the frame: a copy of a header whose
  // fields were just written would wait for those stores, for each packet.
  const auto put = [&frame](std::size_t at, auto value) {
    std::memcpy(frame.header + at, &value, sizeof value);
  };
  std::memcpy(frame.header, &common, sizeof common);
  put(offsetof(tarpon_header, slot), fields.slot);
  put(offsetof(tarpon_header, flags), fields.flags);
  put(offsetof(tarpon_header, contributors), fields.contributors);
  put(offsetof(tarpon_header, length), static_cast<std::uint16_t>(frame.length));
  put(offsetof(tarpon_header, packet_number), next_packet_++);
  if (options_.integrity == TARPON_INTEGRITY_CRC32C) {
    tarpon_header whole;
    std::memcpy(&whole, frame.header, sizeof whole);
    put(offsetof(tarpon_header, check), packet_check(whole, {frame.payload, frame.length}));
  }
  ++counters_.packets_out;
}

}  // namespace tarpon
