// Marks of ranks in bounded operations (OperationSpec::marked): the news goes to all ranks.
//
// The flag NONFINITE says that some rank has set its mark. Two kinds of packets say which: DATA of
// the first stage carries the flag for its sender alone, and READY, CREDIT and REPAIR name ranks in
// `contributors`. A rank that hears a new name passes it on at once, beside what it sends anyway.
// Names may be lost. The flag on a slot is never lost: a slot leaves after the data in it has come.
#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

/// READY, CREDIT and REPAIR have no other use for `contributors`.
bool names_ranks(std::uint8_t type) {
  return type == TARPON_READY || type == TARPON_CREDIT || type == TARPON_REPAIR;
}

}  // namespace

Marks Endpoint::marks(OperationHandle handle) const {
  const Operation* operation = state_->find(handle);
  return operation == nullptr ? Marks{} : operation->marks;
}

/// Returns the marks that a packet carries.
Marks Endpoint::State::marks_in(const tarpon_header& header) const {
  Marks said;
  said.heard = (header.flags & TARPON_FLAG_NONFINITE) != 0;
  if (!said.heard) return said;
  if (header.type == TARPON_DATA && tarpon_stage(&header) == 0) said.ranks = 1ull << header.sender;
  if (names_ranks(header.type)) said.ranks = header.contributors;
  said.ranks &= everybody();
  return said;
}

void Endpoint::State::take_marks(Operation& operation, const Marks& said) {
  if (!operation.bounded || !said.heard) return;
  operation.marks.heard = true;
  if ((said.ranks & ~operation.marks.ranks) == 0) return;
  operation.marks.ranks |= said.ranks;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    control.push(ControlDue{.type = TARPON_CREDIT,
                            .peer = peer,
                            .tag = operation.tag,
                            .operation = operation.number,
                            .grant = operation.unasked,
                            .signature_hash = operation.signature_hash});
  }
}

void Endpoint::State::mark_control(const ControlDue& due, const Operation* operation,
                                   tarpon_header& header) {
  if (due.type == TARPON_ABORT) return;
  const Marks* known = operation == nullptr ? nullptr : &operation->marks;
  if (known == nullptr) {
    const Channel* const channel = tags.find(due.tag);
    const PastOperation* past = channel == nullptr ? nullptr : channel->find_past(due.operation);
    if (past != nullptr) known = &past->marks;
  }
  if (known == nullptr || !known->any()) return;
  header.flags |= TARPON_FLAG_NONFINITE;
  if (names_ranks(due.type)) header.contributors = known->ranks;
}

}  // namespace tarpon
