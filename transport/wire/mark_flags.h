// How packets carry the marks of ranks in bounded operations (OperationSpec::marked).
//
// The flag NONFINITE says that some rank has set its mark. Two kinds of packets say which. DATA of
// the first stage carries the flag for the ranks in it, and names its sender if that is alone.
// READY, CREDIT and REPAIR name ranks in `contributors`. Names may be lost. The flag on a slot is
// never lost: a slot leaves after the data in it has come.
#pragma once

#include <cstdint>

#include "bpf/wire.h"
#include "transport/operation_news.h"

namespace tarpon {

/// READY, CREDIT and REPAIR have no other use for `contributors`.
inline bool names_marked_ranks(std::uint8_t type) {
  return type == TARPON_READY || type == TARPON_CREDIT || type == TARPON_REPAIR;
}

/// Returns the marks that a packet carries. `everybody`: the ranks of the job.
inline Marks marks_in(const tarpon_header& header, std::uint64_t everybody) {
  Marks said;
  said.heard = (header.flags & TARPON_FLAG_NONFINITE) != 0;
  if (!said.heard) return said;
  const std::uint64_t sender = std::uint64_t{1} << header.sender;
  const bool names = header.type == TARPON_DATA && tarpon_stage(&header) == 0;
  if (names && header.contributors == sender) said.ranks = sender;
  if (names_marked_ranks(header.type)) said.ranks = header.contributors;
  said.ranks &= everybody;
  return said;
}

/// Makes a control packet carry `known`.
inline void carry_marks(const Marks& known, tarpon_header& header) {
  if (header.type == TARPON_ABORT || !known.any()) return;
  header.flags |= TARPON_FLAG_NONFINITE;
  if (names_marked_ranks(header.type)) header.contributors = known.ranks;
}

}  // namespace tarpon
