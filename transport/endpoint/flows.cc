// Several flows of one peer: which messages take them, and what comes of it.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {

/// Says over how many flows each message of `operation` goes.
void Endpoint::State::choose_flows(Operation& operation, const OperationSpec& spec) {
  const std::uint64_t least = flow_choice.tries() ? kLargeMessage : 1;
  const auto is_large = [least](const SendSpec& send) { return send.bytes >= least; };
  const bool large = std::any_of(spec.stages.begin(), spec.stages.end(), [&](const StageSpec& one) {
    return std::any_of(one.sends.begin(), one.sends.end(), is_large);
  });
  const FlowChoice::Next next = large ? flow_choice.next() : FlowChoice::Next{};
  operation.flows = next.flows;
  operation.flows_measured = next.measured;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const std::vector<SendSpec>& sends = spec.stages[i].sends;
    for (std::size_t j = 0; j < sends.size(); ++j) {
      operation.stages[i].sends[j].stripes = {stripe_slots(operation.slot_bytes),
                                              is_large(sends[j]) ? next.flows : 1};
    }
  }
}

/// The first DATA of a message says how its sender spreads it.
void Endpoint::State::learn_flows(const Operation& operation, ReceiveMessage& message,
                                  const tarpon_header& header) {
  message.flows_known = true;
  message.stripes = {stripe_slots(operation.slot_bytes), tarpon_flows(&header)};
  const std::uint64_t bytes = std::uint64_t{message.slots} * operation.slot_bytes;
  if (bytes < kLargeMessage || flows_of[message.peer] == message.stripes.flows) return;
  flows_of[message.peer] = static_cast<std::uint8_t>(message.stripes.flows);
  inflow.flows_changed();
}

/// What has come of `operation`, which ends, tells what its number of flows is good for.
void Endpoint::State::measure_flows(const Operation& operation, bool failed) {
  if (!operation.flows_measured) return;
  std::uint64_t slots = 0;
  Time last{};
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const Stage& stage = operation.stages[i];
    last = std::max(last, stage.last_arrival);
    for (const ReceiveMessage& message : stage.receives) {
      slots += message.presence.count() - message.given_up;
    }
  }
  const bool timed = operation.started != kNever && last > operation.started;
  double rate = 0;
  if (timed && !failed) {
    rate = static_cast<double>(slots * operation.slot_bytes) /
           std::chrono::duration<double>(last - operation.started).count();
  }
  flow_choice.ended(operation.flows, rate);
}

}  // namespace tarpon
