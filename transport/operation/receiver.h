// DATA in: slots are marked present and handed to their sinks. Senders get credit for more. Missing
// slots are asked for again, or given up.
//
// A slot is marked present before its sink runs, and delivered once at most. Every packet is
// delivered or counted under one reason. Stages that expect nothing more close: the caller hears of
// it by Event::Kind::stage_closed.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bpf/wire.h"
#include "transport/counters.h"
#include "transport/endpoint.h"
#include "transport/operation/alarm.h"
#include "transport/operation/granter.h"
#include "transport/operation/journal.h"
#include "transport/operation/operation.h"
#include "transport/peers/control_queue.h"

namespace tarpon {

class Receiver {
 public:
  /// What the receiver works with. All outlive it.
  struct Parts {
    const EndpointOptions& options;
    Granter& granter;
    ControlQueue& control;
    Journal& journal;
    EndpointCounters& counters;
    Alarm& alarm;
  };
  explicit Receiver(const Parts& parts);

  /// Takes DATA of an open operation, in its epoch and with its signature: a train with the slots
  /// from `header.slot` on. Its other headers differ from `header` in length, packet number and
  /// check only.
  void receive(Operation& operation, tarpon_header header, std::span<const RxPacket> packets,
               Time now);

  /// Stops waiting for `message`: no more of it comes. REQUIRES: `stage` is open and the message is
  /// not delivered.
  void give_up(Operation& operation, Stage& stage, ReceiveMessage& message, Time now);
  /// Waits for one of the stage's spares from now on. The stage is open then.
  void fetch(Stage& stage, const ReceiveMessage& spare);
  /// Closes `stage`. `closing`: the reason, if something is missing.
  void close_stage(Operation& operation, Stage& stage, Closing closing, Time now);
  /// The operation ends: no more data of it is expected.
  void release(Operation& operation, Time now);

  /// Tells senders of the grants that have grown. `operations`: the open ones, oldest first.
  void give_credit(std::span<Operation* const> operations, Time now);
  /// Confirms once more the messages of `peer` that are here, or that this rank waits for no more.
  void confirm_again(Operation& operation, Rank peer);
  void queue_credit(const Operation& operation, std::uint8_t stage, Rank peer, std::uint32_t grant);

  /// Asks for what is missing of a message whose sender has begun, or gives it up, where that is
  /// due. Returns when it is due again. REQUIRES: the stage is open.
  Time time_message(Operation& operation, std::uint8_t stage, ReceiveMessage& message, Time now);
  /// The longest time between two requests of the operation. An operation without a running bound
  /// uses the limit of exact operations.
  Duration longest_delay(const Operation& operation) const;

 private:
  static bool needs_no_more(const Operation& operation, const Stage& stage);
  void confirm(const Operation& operation, const Stage& stage, const ReceiveMessage& message);
  void learn_flows(const Operation& operation, ReceiveMessage& message,
                   const tarpon_header& header);
  bool refused(Operation& operation, const Stage& stage, const ReceiveMessage& message,
               const tarpon_header& header, const RxPacket& packet);
  static std::size_t run_length(const ReceiveMessage& message, const tarpon_header& header,
                                std::span<const RxPacket> packets);
  void take(Operation& operation, Stage& stage, ReceiveMessage& message,
            const tarpon_header& header, std::span<const RxPacket> packets, Time now);
  void count_arrivals(const Operation& operation, const ReceiveMessage& message,
                      const tarpon_header& header, std::span<const RxPacket> packets);
  void note_arrival(Operation& operation, Stage& stage, ReceiveMessage& message,
                    const tarpon_header& header, Time now);
  void delivered_one(Operation& operation, Stage& stage, ReceiveMessage& message, Time now);
  void message_ended(Operation& operation, Stage& stage, ReceiveMessage& message, Time now);
  void give_up_gap(Operation& operation, Stage& stage, ReceiveMessage& message,
                   const RequestDelays& delays, Time now);
  RequestDelays delays(const Operation& operation) const;

  const EndpointOptions& options_;
  Granter& granter_;
  Inflow& inflow_;  // the granter's
  ControlQueue& control_;
  Journal& journal_;
  Alarm& alarm_;
  EndpointCounters& counters_;
  std::vector<std::uint8_t> flows_of_;  // by peer: of the latest large message from it
};

}  // namespace tarpon
