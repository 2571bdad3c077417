// DATA out: the oldest operation first, then by stage and peer. Of each message, the slots that its
// receiver asked for again leave first, then new ones, as far as they are ready, and credit and
// Outflow allow it. FlowChoice says over how many flows.
//
// A source lends its payload, which the port sends from where it lies; for a port that cannot
// gather, the payload is copied into its frame. Runs of packets to one peer are whole trains
// wherever the frames suffice. Slots of a stage that is sent by multicast go to all peers at once
// (multicast.h).
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/operation/multicast.h"
#include "transport/operation/operation.h"
#include "transport/operation/packet_writer.h"
#include "transport/peers/control_queue.h"
#include "transport/rate/flow_choice.h"
#include "transport/rate/outflow.h"

namespace tarpon {

class Sender {
 public:
  /// References outlive the sender.
  Sender(const EndpointOptions& options, const PortCapabilities& port, PacketWriter& writer,
         EndpointCounters& counters, const Participants& participants, Alarm& alarm);

  Outflow& outflow() { return outflow_; }

  /// Chooses over how many flows each message of `operation`, which begins with `spec`, goes.
  void choose_flows(Operation& operation, const OperationSpec& spec);
  /// Measures the rate of the data that came in `operation`, which ends: it rates its number of
  /// flows.
  void measure_flows(const Operation& operation, bool failed);
  /// As Endpoint::flows().
  std::uint32_t flows() const { return flow_choice_.flows(); }

  /// Fills `frames` with packets of `operations`, oldest first; returns how many. The alarm rings
  /// when more may leave, where Outflow holds packets back.
  std::size_t send(Time now, std::span<Operation* const> operations, std::span<TxPacket> frames);
  /// The same for slots of closed operations that peers have asked for. What is no longer retained
  /// is not sent. The slots are copied: the bytes may be freed before the port has sent them.
  std::size_t send_retained(Time now, ControlQueue& due, TagHistory& tags,
                            std::span<TxPacket> frames);

 private:
  /// Slots of a message that leave with the same flags, over one flow.
  struct Stretch {
    std::uint32_t first = 0;
    Rank peer = 0;
    std::uint8_t flags = 0;
    std::uint8_t flow = 0;
  };

  /// Slots of a message, and where they go.
  struct SlotRange {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
    Rank peer = 0;
  };

  std::size_t send_stage(Time now, Operation& operation, std::uint8_t number,
                         std::span<TxPacket> frames);
  std::span<TxPacket> paced(Time now, const Operation& operation, const SendMessage& message,
                            std::span<TxPacket> frames) const;
  tarpon_header header_of(Time now, const Operation& operation, std::uint8_t stage,
                          const SendMessage& message, Rank peer) const;
  std::size_t send_repairs(Time now, Operation& operation, std::uint8_t stage, SendMessage& message,
                           std::span<TxPacket> frames);
  std::size_t send_new(Time now, const Operation& operation, std::uint8_t stage,
                       SendMessage& message, std::span<TxPacket> frames);
  std::size_t send_to_all(Time now, Operation& operation, std::uint8_t number,
                          std::span<TxPacket> frames);
  std::uint32_t send_slots(const tarpon_header& header, const Operation& operation,
                           const SendMessage& message, const SlotRange& range,
                           std::span<TxPacket> frames);
  std::uint32_t train_rest(const SendMessage& message, const SlotRange& range,
                           std::uint32_t take) const;
  void fill(const tarpon_header& header, const Operation& operation, const SendMessage& message,
            const Stretch& stretch, std::span<TxPacket> frames);
  void place(const Operation& operation, const OutgoingRun& run, std::span<TxPacket> frames) const;

  const bool gathers_;
  const std::uint32_t train_;  // packets in one
  PacketWriter& writer_;
  EndpointCounters& counters_;
  const Participants& participants_;
  Alarm& alarm_;
  Outflow outflow_;
  FlowChoice flow_choice_;
};

}  // namespace tarpon
