// Credit: what senders may send unasked, and how grants grow with what has come.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

constexpr std::uint64_t kLeastCredit = 2;  // slots: a message moves on
constexpr std::uint32_t kPacedGrant = 16;  // slots: a train that a small token bucket lets pass

}  // namespace

/// Slots of each message that may be sent unasked where `advertised` is said.
std::uint32_t Endpoint::State::unasked(std::uint32_t advertised) const {
  if (options.inflow != InflowRule::window) return options.initial_credit;
  return Inflow::unasked_slots(advertised, options.initial_credit);
}

/// What `peer` advertises has changed.
void Endpoint::State::note_advertised(Rank peer, std::uint32_t advertised) {
  advertised_by[peer] = static_cast<std::uint8_t>(advertised);
  if (options.inflow != InflowRule::window) return outflow.senders_at(peer, advertised);
  const std::uint32_t slots = unasked(advertised);
  for (Operation* operation : open_operations) {
    for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
      SendMessage* message = operation->stages[i].send_to(peer);
      if (message != nullptr) message->grant = std::max(message->grant, slots);
    }
  }
}

std::uint32_t Endpoint::State::credit_window(std::uint32_t slot_bytes) const {
  const std::uint64_t share = inflow.window() / std::max(1u, open_receives);
  const std::uint64_t slots = share / (slot_bytes + TARPON_HEADER_BYTES);
  return static_cast<std::uint32_t>(
      std::max<std::uint64_t>(kLeastCredit, std::min<std::uint64_t>(slots, kAllSlots / 2)));
}

void Endpoint::State::note_progress(Operation& operation, const Stage& stage,
                                    ReceiveMessage& message) {
  if (message.grant_due || message.granted >= message.slots) return;
  message.grant_due = true;
  grants_due.push_back({&operation, &stage, &message});
}

void Endpoint::State::extend_grants() {
  for (const GrantDue& due : grants_due) {
    due.message->grant_due = false;
    extend_grant(*due.operation, *due.stage, *due.message);
  }
  grants_due.clear();
}

/// Paced: what was held back because others had their turn, in turn.
void Endpoint::State::resume_grants(Time now) {
  if (!inflow.pace().on() || now < inflow.pace().next_grant()) return;
  std::size_t count = 0;
  const auto each = [this](auto&& visit) {
    for (Operation* operation : open_operations) {
      for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
        Stage& stage = operation->stages[i];
        if (stage.closed) continue;
        for (ReceiveMessage& message : stage.receives) {
          if (operation->peers[message.peer].heard) visit(*operation, stage, message);
        }
      }
    }
  };
  each([&](Operation&, Stage&, ReceiveMessage&) { ++count; });
  if (count == 0) return;
  const std::size_t first = ++next_granted % count;
  for (const bool wrapped : {false, true}) {
    std::size_t at = 0;
    each([&](Operation& operation, Stage& stage, ReceiveMessage& message) {
      if ((at++ < first) == wrapped) extend_grant(operation, stage, message);
    });
  }
}

void Endpoint::State::extend_grant(Operation& operation, const Stage& stage,
                                   ReceiveMessage& message) {
  if (message.granted >= message.slots) return;
  const std::uint32_t window = credit_window(operation.slot_bytes);
  const std::uint32_t used =
      std::max(message.presence.end(), message.written_off) - message.parked_count;
  std::uint32_t target = message.slots - used < window ? message.slots : used + window;
  if (target <= message.granted) return;
  if (target != message.slots && target - message.granted < std::max(1u, window / 4)) return;
  if (inflow.pace().on()) {
    if (latest < inflow.pace().next_grant()) {
      timer = std::min(timer, inflow.pace().next_grant());
      return;
    }
    target = std::min(target, message.granted + kPacedGrant);
    inflow.granted(latest, std::uint64_t{target - message.granted} *
                               (operation.slot_bytes + TARPON_HEADER_BYTES));
  }
  message.granted = target;
  if (target == message.slots)
    note(RecordKind::credit, operation, message.peer, target,
         static_cast<std::uint8_t>(&stage - operation.stages.data()));
  queue_control({.type = TARPON_CREDIT,
                 .stage = static_cast<std::uint8_t>(&stage - operation.stages.data()),
                 .peer = message.peer,
                 .tag = operation.tag,
                 .operation = operation.number,
                 .slot = target,
                 .signature_hash = operation.signature_hash});
}

}  // namespace tarpon
