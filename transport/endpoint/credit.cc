// News of credit: what senders may send unasked, and the grants that the granter gives.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {

/// What `peer` advertises has changed.
void Endpoint::State::note_advertised(Rank peer, std::uint32_t advertised) {
  advertised_by[peer] = static_cast<std::uint8_t>(advertised);
  if (options.inflow != InflowRule::window) return sender.outflow().senders_at(peer, advertised);
  const std::uint32_t slots = granter.unasked(advertised);
  for (Operation* operation : open_operations) {
    for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
      SendMessage* message = operation->stages[i].send_to(peer);
      if (message != nullptr) message->grant = std::max(message->grant, slots);
    }
  }
}

/// Tells senders of the grants that have grown.
void Endpoint::State::give_credit(Time now) {
  for (const Grant& grant : granter.give(now, open_operations)) {
    const ReceiveMessage& message = *grant.message;
    if (message.granted == message.slots) {
      journal.note(RecordKind::credit, *grant.operation, message.peer, latest, message.granted,
                   grant.stage);
    }
    queue_credit(*grant.operation, grant.stage, message.peer, message.granted);
    timer = std::min(timer, message_due(*grant.operation, message));
  }
  timer = std::min(timer, granter.next(now));
}

void Endpoint::State::queue_credit(const Operation& operation, std::uint8_t stage, Rank peer,
                                   std::uint32_t grant) {
  queue_control({.type = TARPON_CREDIT,
                 .stage = stage,
                 .peer = peer,
                 .tag = operation.tag,
                 .operation = operation.number,
                 .slot = grant,
                 .signature_hash = operation.signature_hash});
}

}  // namespace tarpon
