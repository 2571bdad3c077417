#include "transport/operation/message/receive_message.h"

#include <algorithm>
#include <utility>

namespace tarpon {

void ReceiveMessage::reset(const ReceiveSpec& spec, std::uint32_t slot_bytes, bool may_repair,
                           Time now) {
  peer_ = spec.peer;
  sink_ = spec.sink;
  lengths_.assign(spec.bytes, spec.ranges, slot_bytes);
  arrivals_.reset(slots());
  credit_ = {};
  repair_below_ = may_repair ? slots() : 0;
  tail_seen_ = slots() == 0;
  ended_ = false;
  last_given_up_ = false;
  given_up_ = 0;
  last_heard_ = asked_ = now;
  granted_when_asked_ = 0;
  asks_ = 0;
}

std::uint64_t ReceiveMessage::received_bytes() const {
  return lengths_.sum(received(), [this](std::uint32_t slot) {
    return arrivals_.presence().contains(slot) && !(last_given_up_ && slot + 1 == slots());
  });
}

void ReceiveMessage::note_arrival(std::uint32_t slot, bool answers, Time now) {
  last_heard_ = now;
  if (answers) {
    credit_.answered();
    asks_ = 0;
    arrivals_.note_repair(slot, granted_when_asked_, now);
  } else {
    asks_ = std::min(asks_, 1u);  // the sender sends: it was not gone, only waiting
    arrivals_.note_order(slot, now);
  }
}

void ReceiveMessage::allow_repair(std::uint32_t below) {
  repair_below_ = std::max(repair_below_, std::min(below, slots()));
}

void ReceiveMessage::extend_credit(std::uint32_t slots, Time now) {
  if (waits_for_credit()) last_heard_ = now;
  credit_.set_granted(credit_.granted() + slots);
}

Time ReceiveMessage::due(const RequestDelays& delays) const {
  if (waits_for_credit()) return kNever;
  const Time gap_since = arrivals_.gap_since();
  if (asks_ > 0 || !may_repair()) {
    const Duration patience = backed_off(delays.quiet, asks_, delays.longest);
    const Time again = silent_since() + patience;
    if (gap_since == kNever) return again;
    if (!may_repair()) return std::min(again, gap_since + delays.gap);
    // Other slots that come meanwhile do not answer the request: it, or its answer, is lost.
    return asked_ + patience;
  }
  const Time quiet = last_heard_ + delays.quiet;
  return gap_since == kNever ? quiet : std::min(quiet, gap_since + delays.gap);
}

bool ReceiveMessage::ask(Time now) {
  asked_ = now;
  granted_when_asked_ = credit_.granted();
  ++asks_;
  if (may_repair() || asks_ < 2) return false;
  credit_.write_off();
  return true;
}

ReceiveMessage::Request ReceiveMessage::request(std::uint32_t most, std::span<tarpon_range> out) {
  const std::uint32_t below = std::min(credit_.granted(), repair_below_);
  std::size_t count = arrivals_.lost(below, most, out);
  if (count == 0) {
    // Without proof of a loss one slot of each flow is asked for: its answer tells whether the rest
    // is lost or only late.
    count = arrivals_.first_missing(below, out);
  } else if (asks_ > 1) {
    // What counts as lost in one flow may never have been sent: it may wait for a slot of another
    // flow.
    count = arrivals_.lost_or_first(below, most, out);
  }
  std::uint32_t slots = 0;
  for (const tarpon_range& run : out.first(count)) slots += run.count;
  credit_.request(slots);
  return {count, asks_};
}

std::size_t ReceiveMessage::give_up_gap(const RequestDelays& delays, Time now,
                                        std::span<tarpon_range> out) {
  const Time since = arrivals_.gap_since();
  if (may_repair() || since == kNever || now < since + delays.gap) return 0;
  const std::size_t runs = arrivals_.take_gap(now, out);
  for (const tarpon_range& run : out.first(runs)) {
    given_up_ += run.count;
    last_given_up_ |= run.first + run.count == slots();
  }
  return runs;
}

}  // namespace tarpon
