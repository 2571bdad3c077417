// The possible causes of a failed operation, one row each, and the reasons of ABORT, one row each.
#pragma once

#include <cstdint>
#include <string_view>

namespace tarpon {

enum class FlightCause : std::uint8_t {
  none,  // nothing differs
  mismatch,
  port_failed,
  send_refused,
  refused,
  aborted,
  expired,
  forgotten,
  died,
  left,
  evicted,
  paused,
  late,
  silent,
  cut_off,
  link_cut,
  loss,
  mtu,
  stalled,
  slow,
  nonfinite,
  undecided,
  count
};

struct FlightCauseRow {
  FlightCause cause;
  std::string_view keyword;  // in JSON and tests
  std::string_view what;     // in the verdict's line
  std::string_view next;     // what to do, one line
};

/// Every cause has a row.
const FlightCauseRow& row_of(FlightCause cause);

struct AbortReasonRow {
  std::uint32_t reason;  // tarpon_abort_reason
  FlightCause cause;     // none: an abort for this reason passes on a failure and causes none
  std::string_view text;
};

/// A reason without a row blames the rank that began the abort.
AbortReasonRow abort_reason(std::uint32_t reason);

}  // namespace tarpon
