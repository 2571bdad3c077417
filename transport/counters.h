// Why packets were dropped, counted per endpoint. Every received packet is either applied or
// counted here under exactly one reason.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tarpon {

/// When a reason is added: drop_reason_name() and PROTOCOL.md follow.
enum class DropReason : std::uint8_t {
  runt,            // shorter than a header
  magic,           // not ours
  version,         // another wire version
  foreign_job,     // another job's cookie
  type,            // unknown packet type
  fields,          // reserved bits, stage or length out of range
  sender,          // out of range, this rank, dead, or not the rank of the source address
  communicator,    // not this endpoint's
  integrity,       // another integrity setting than the job's, or the check failed
  epoch,           // another epoch or incarnation
  closed,          // DATA of an operation or stage that is over here
  duplicate,       // DATA that is here already
  outside_window,  // operation too far ahead
  early_overrun,   // early, and no reserved buffer was left: asked for again; or AGREEMENT, no room
  message,         // no such message, slot out of range, wrong length
  mismatch,        // the operation's signature differs
  unexpected,      // feedback for something that was never sent
  count            // number of reasons
};

constexpr std::string_view drop_reason_name(DropReason reason) {
  switch (reason) {
    case DropReason::runt:
      return "runt";
    case DropReason::magic:
      return "magic";
    case DropReason::version:
      return "version";
    case DropReason::foreign_job:
      return "foreign_job";
    case DropReason::type:
      return "type";
    case DropReason::fields:
      return "fields";
    case DropReason::sender:
      return "sender";
    case DropReason::communicator:
      return "communicator";
    case DropReason::integrity:
      return "integrity";
    case DropReason::epoch:
      return "epoch";
    case DropReason::closed:
      return "closed";
    case DropReason::duplicate:
      return "duplicate";
    case DropReason::outside_window:
      return "outside_window";
    case DropReason::early_overrun:
      return "early_overrun";
    case DropReason::message:
      return "message";
    case DropReason::mismatch:
      return "mismatch";
    case DropReason::unexpected:
      return "unexpected";
    case DropReason::count:
      break;
  }
  return "?";
}

struct EndpointCounters {
  std::array<std::uint64_t, static_cast<std::size_t>(DropReason::count)> dropped{};
  std::uint64_t packets_in = 0;         // all that on_receive() got
  std::uint64_t packets_out = 0;        // all that poll_transmit() produced
  std::uint64_t data_in = 0;            // DATA applied, replayed ones included
  std::uint64_t data_out = 0;           // DATA sent, repairs included
  std::uint64_t control_in = 0;         // other packets applied
  std::uint64_t credits_out = 0;        // CREDIT packets sent
  std::uint64_t repaired_slots = 0;     // DATA sent again on request
  std::uint64_t repairs_requested = 0;  // REPAIR packets sent
  std::uint64_t parked = 0;             // packets that waited for their operation

  std::uint64_t& operator[](DropReason reason) { return dropped[static_cast<std::size_t>(reason)]; }
  std::uint64_t operator[](DropReason reason) const {
    return dropped[static_cast<std::size_t>(reason)];
  }
  /// Counts a control packet as dropped that was counted as applied when it came.
  void refuse_control(DropReason reason) {
    --control_in;
    ++(*this)[reason];
  }
};

}  // namespace tarpon
