// NaN and infinity in what a rank contributes to a bounded operation: the news goes to everybody.
//
// The flag NONFINITE says that there is some. Whose it is say the sender of DATA of the first
// stage, which is flagged for its own sake alone, and `contributors` of READY, CREDIT and REPAIR.
// Whoever hears a new name passes it on at once, beside what it sends anyway: names may be lost,
// the flag on a slot never is, since a slot leaves after what is in it has come.
#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

/// READY, CREDIT and REPAIR have no other use for `contributors`.
bool names_ranks(std::uint8_t type) {
  return type == TARPON_READY || type == TARPON_CREDIT || type == TARPON_REPAIR;
}

}  // namespace

Nonfinite Endpoint::nonfinite(OperationHandle handle) const {
  const Operation* operation = state_->find(handle);
  return operation == nullptr ? Nonfinite{} : operation->nonfinite;
}

/// What a packet says.
Nonfinite Endpoint::State::nonfinite_in(const tarpon_header& header) const {
  Nonfinite said;
  said.heard = (header.flags & TARPON_FLAG_NONFINITE) != 0;
  if (!said.heard) return said;
  if (header.type == TARPON_DATA && tarpon_stage(&header) == 0) said.ranks = 1ull << header.sender;
  if (names_ranks(header.type)) said.ranks = header.contributors;
  if (options.world_size < 64) said.ranks &= (1ull << options.world_size) - 1;
  return said;
}

void Endpoint::State::take_nonfinite(Operation& operation, const Nonfinite& said) {
  if (!operation.bounded || !said.heard) return;
  operation.nonfinite.heard = true;
  if ((said.ranks & ~operation.nonfinite.ranks) == 0) return;
  operation.nonfinite.ranks |= said.ranks;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    control.push(ControlDue{.type = TARPON_CREDIT,
                            .peer = peer,
                            .tag = operation.tag,
                            .operation = operation.number,
                            .slot = operation.unasked,
                            .signature_hash = operation.signature_hash});
  }
}

void Endpoint::State::mark_control(const ControlDue& due, const Operation* operation,
                                   tarpon_header& header) {
  if (due.type == TARPON_ABORT) return;
  const Nonfinite* known = operation == nullptr ? nullptr : &operation->nonfinite;
  if (known == nullptr) {
    const Channel* const channel = tags.find(due.tag);
    const PastOperation* past = channel == nullptr ? nullptr : channel->find_past(due.operation);
    if (past != nullptr) known = &past->nonfinite;
  }
  if (known == nullptr || !known->any()) return;
  header.flags |= TARPON_FLAG_NONFINITE;
  if (names_ranks(due.type)) header.contributors = known->ranks;
}

}  // namespace tarpon
