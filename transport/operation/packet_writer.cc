#include "transport/operation/packet_writer.h"

#include <cstring>

#include "transport/integrity.h"

namespace tarpon {

tarpon_header PacketWriter::header(Time now, Rank peer, std::uint8_t type, std::uint32_t tag,
                                   std::uint32_t operation, std::uint8_t stage) const {
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  header.type = type;
  header.job = options_.job;
  header.sender = options_.rank;
  header.communicator = options_.communicator;
  header.tag = tag;
  header.operation = operation;
  header.stage = stage;
  header.flags = static_cast<std::uint8_t>(options_.integrity << TARPON_INTEGRITY_SHIFT);
  header.closed_below = static_cast<std::uint16_t>(tags_.lowest_open(tag));
  header.incast_codec = static_cast<std::uint8_t>(inflow_.advertised());
  header.sent_us = microseconds(now);
  header.echo_us = peer == kAllRanks ? 0 : clocks_.echo(peer, now);
  return header;
}

void PacketWriter::mark_epoch(const OperationEpoch& epoch, tarpon_header& header) {
  header.epoch = epoch.number;
  header.incast_codec |= static_cast<std::uint8_t>(epoch.form << TARPON_CODEC_SHIFT);
  header.stride = epoch.form_details;
}

void PacketWriter::write(tarpon_header common, const RunFields& fields,
                         std::span<TxPacket> frames) {
  common.flags = fields.flags;
  common.contributors = fields.contributors;
  std::uint32_t slot = fields.slot;
  for (TxPacket& frame : frames) {
    // What differs from packet to packet goes straight into the frame: a copy of a header whose
    // fields were just written would wait for those stores, for each packet.
    const auto put = [&frame](std::size_t at, auto value) {
      std::memcpy(frame.header + at, &value, sizeof value);
    };
    std::memcpy(frame.header, &common, sizeof common);
    put(offsetof(tarpon_header, slot), slot++);
    put(offsetof(tarpon_header, length), static_cast<std::uint16_t>(frame.length));
    put(offsetof(tarpon_header, packet_number), next_packet_++);
    if (options_.integrity == TARPON_INTEGRITY_CRC32C) {
      tarpon_header whole;
      std::memcpy(&whole, frame.header, sizeof whole);
      put(offsetof(tarpon_header, check), packet_check(whole, {frame.payload, frame.length}));
    }
  }
  counters_.packets_out += frames.size();
}

}  // namespace tarpon
