// Packets of operations that this rank has not begun. They are kept within limits (EarlyPackets),
// and OpenOperation applies them when the operation begins.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>

#include "bpf/wire.h"
#include "transport/endpoint.h"
#include "transport/peers/participants.h"
#include "transport/peers/peer_clocks.h"
#include "transport/tags/early_packets.h"
#include "transport/tags/tag_history.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

class EarlyOperations {
 public:
  /// All outlive it.
  struct Parts {
    const EndpointOptions& options;
    const PeerClocks& clocks;
    const Participants& participants;
    TagHistory& tags;
    EndpointCounters& counters;
  };
  EarlyOperations(const Parts& parts, std::uint32_t max_payload);

  /// Keeps a DATA packet, or counts it as dropped.
  void take_data(const tarpon_header& header, const RxPacket& packet, Time now);
  /// Keeps the contents of a READY or ABORT. Packets of other types come again once the operation
  /// is open.
  void take_control(const ControlPacket& packet, Time now);

  /// Whether `peer`, which takes part in the operation, has ended it, and not given it up before it
  /// could begin: it has no result then. `tag_state`: of the operation's tag.
  bool has_ended(const TagState& tag_state, Rank peer, std::uint32_t number) const;

  /// What is kept.
  EarlyPackets& packets() { return packets_; }
  const EarlyPackets& packets() const { return packets_; }

 private:
  void take_abort(const ControlPacket& packet, Time now);
  void note_abort_beyond_window(const ControlPacket& packet, std::uint32_t lowest);
  void take_ready(const ControlPacket& packet, Time now);

  const Parts parts_;
  EarlyPackets packets_;
};

}  // namespace tarpon
