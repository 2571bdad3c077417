// Control packets and AGREEMENTs out. What may change until a packet leaves (grants, ranges of a
// REPAIR, marks) is read from its operation then.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/operation/granter.h"
#include "transport/operation/journal.h"
#include "transport/operation/packet_writer.h"
#include "transport/peers/control_queue.h"
#include "transport/tags/tag_history.h"

namespace tarpon {

class ControlWriter {
 public:
  /// All outlive it.
  struct Parts {
    PacketWriter& writer;
    ControlQueue& control;
    TagHistory& tags;
    Granter& granter;
    Journal& journal;
    EndpointCounters& counters;
  };
  /// `max_entries`: ranges that one REPAIR carries.
  ControlWriter(const Parts& parts, std::size_t max_entries)
      : parts_(parts), max_entries_(max_entries) {}

  // Each fills `frames` with packets that are due, and returns how many.
  std::size_t emit_control(Time now, std::span<TxPacket> frames);
  std::size_t emit_agreements(Time now, std::span<TxPacket> frames);

 private:
  bool fill(Time now, const ControlDue& due, TxPacket& frame);
  static bool fill_ready(const ControlDue& due, const Operation* operation,
                         const PastOperation* past, tarpon_header& header, TxPacket& frame);
  bool fill_repair(Time now, const ControlDue& due, Operation& operation, std::uint32_t& grant,
                   std::uint32_t& asks, TxPacket& frame);

  const Parts parts_;
  const std::size_t max_entries_;
};

}  // namespace tarpon
