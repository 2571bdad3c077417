#include "transport/endpoint/packet_writer.h"

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
  header.echo_us = clocks_.echo(peer, now);
  return header;
}

void PacketWriter::mark_epoch(const OperationEpoch& epoch, tarpon_header& header) {
  header.epoch = epoch.number;
  header.incast_codec |= static_cast<std::uint8_t>(epoch.form << TARPON_CODEC_SHIFT);
  header.stride = epoch.form_details;
}

}  // namespace tarpon
