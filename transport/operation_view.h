// A look at one operation of an endpoint.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "transport/operation_news.h"
#include "transport/operation_spec.h"

namespace tarpon {

struct Operation;
class Participants;

/// Looks at one operation. Valid until the endpoint's next call that is not const. Of an operation
/// that is not open it says nothing: no marks, no doubt, no rank that takes no part; the others
/// REQUIRE that it is open.
class OperationView {
 public:
  /// The terms that the READY of `peer` carried; nothing before it has come.
  std::optional<CallTerms> terms(Rank peer) const;

  /// The ranks that began the operation first, up to half of them: their begin started the clock.
  /// Bit r: rank r; all ranks where no such half did.
  std::uint64_t first_half() const;

  /// Whether `peer` has left and takes no part in this operation, or is dead.
  bool takes_no_part(Rank peer) const;

  /// Progress of the message from `peer` in `stage`; zeros when there is none.
  MessageProgress progress(std::uint8_t stage, Rank peer) const;

  /// The peers whose data lacks, as NearWork::awaits() said last. Bit r: rank r.
  std::uint64_t awaited_near() const;

  /// The time that `peer` expects the operation to take, in units of 16 us; 0: unknown.
  std::uint16_t stage_time(Rank peer) const;

  /// The marks that this rank knows of. Every packet of a rank with a mark says so, and so does
  /// everything that other ranks send once they have heard of it. So a rank that has not heard of a
  /// mark has no data of the rank that set it.
  Marks marks() const;

  /// Whether peers run the operation in a later epoch. This rank cannot use their data then.
  bool is_stranded() const;

  /// Whether `stage` is closed. A late rank that fetches more than it waited for opens it again.
  bool has_closed(std::uint8_t stage) const;

  /// Whether every slot of `stage` has gone out once, except to peers that have not begun and whose
  /// initial credit is used up.
  bool sent(std::uint8_t stage) const;

  /// Whether every message of `stage` that asks for acknowledgement has it.
  bool acknowledged(std::uint8_t stage) const;

  /// The ranks whose acknowledgements are missing, over all stages. Bit r: rank r.
  std::uint64_t unacknowledged() const;

  /// Bounded: whether this rank is asking its peers if they have closed the operation without
  /// anything of its last stage. Until they have answered (see LatenessPolicy), a rank that ends
  /// the operation may hold what the others count as missing. That stage stays open until then,
  /// beyond its end.
  bool in_doubt() const;

 private:
  friend class Endpoint;
  OperationView(const Operation* operation, const Participants& participants, Rank self)
      : operation_(operation), participants_(participants), self_(self) {}
  const Operation& open(const char* what) const;

  const Operation* operation_;
  const Participants& participants_;
  Rank self_;
};

}  // namespace tarpon
