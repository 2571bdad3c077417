#include "transport/probe_packet.h"

#include <cstring>
#include <span>

namespace tarpon {

void fill_probe(TxPacket& frame, const ProbePacket& probe, std::uint32_t job, Rank sender,
                Rank to) {
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  header.type = probe.type;
  header.job = job;
  header.sender = sender;
  header.slot = probe.number;
  header.stage = probe.kind;
  header.length = static_cast<std::uint16_t>(probe.bytes);
  std::memcpy(frame.header, &header, sizeof header);
  frame.peer = to;
  frame.flow = 0;
  frame.payload = frame.room;
  frame.lender = kNoLender;
  frame.length = probe.bytes;
  if (probe.bytes > 0) std::memset(frame.room, 0, probe.bytes);
}

bool send_probe(Port& port, const ProbePacket& probe, std::uint32_t job, Rank sender, Rank to) {
  const std::span<TxPacket> frames = port.transmit_frames(1);
  if (frames.empty()) return false;
  fill_probe(frames[0], probe, job, sender, to);
  port.transmit(frames.first(1));
  return true;
}

std::optional<ProbePacket> read_probe(const RxPacket& packet, std::uint32_t job) {
  tarpon_header header;
  if (packet.length < sizeof header || packet.source == kUnknownRank) return std::nullopt;
  std::memcpy(&header, packet.data, sizeof header);
  // The port has cut a tag off.
  const std::uint32_t bytes = packet.length - TARPON_HEADER_BYTES + tarpon_tag_bytes(&header);
  const bool good = tarpon_check_header(&header, job, bytes) == TARPON_HEADER_OK &&
                    header.sender == packet.source;
  if (!good || (header.type != TARPON_PROBE && header.type != TARPON_PROBE_REPLY)) {
    return std::nullopt;
  }
  return ProbePacket{static_cast<tarpon_type>(header.type), static_cast<tarpon_probe>(header.stage),
                     header.slot, header.length};
}

}  // namespace tarpon
