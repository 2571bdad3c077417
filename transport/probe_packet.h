// PROBE and PROBE_REPLY: packets that test a path. connect() uses them to find how large packets
// may be, and `tarpon check` to measure each pair. An endpoint ignores them.
#pragma once

#include <cstdint>
#include <optional>

#include "transport/port.h"

namespace tarpon {

/// The header fields of a probe that have a meaning.
struct ProbePacket {
  tarpon_type type = TARPON_PROBE;  // or TARPON_PROBE_REPLY
  tarpon_probe kind = TARPON_PROBE_FULL;
  std::uint32_t number = 0;
  std::uint32_t bytes = 0;  // of payload, all zero
};

/// Fills `frame`, from the port's transmit_frames(), with a probe of rank `sender` to rank `to`.
/// REQUIRES: probe.bytes <= the port's max_payload.
void fill_probe(TxPacket& frame, const ProbePacket& probe, std::uint32_t job, Rank sender, Rank to);

/// Sends one probe, in a train of its own. False: the port has no frame free now.
bool send_probe(Port& port, const ProbePacket& probe, std::uint32_t job, Rank sender, Rank to);

/// The probe in `packet`. Empty for everything else: another type, a header that
/// tarpon_check_header() refuses, and a packet whose sender is not the rank of its source address.
std::optional<ProbePacket> read_probe(const RxPacket& packet, std::uint32_t job);

}  // namespace tarpon
