#include "transport/operation/multicast.h"

#include <algorithm>

namespace tarpon {
bool in_step(const Stage& stage, const SendMessage& message, const Participants& participants) {
  return !message.is_done() && !participants.is_silent(message.peer()) &&
         message.sendable() >= stage.multicast.next;
}

std::uint32_t multicast_limit(const Operation& operation, Stage& stage,
                              const Participants& participants, Time now, Alarm& alarm) {
  Multicast& multicast = stage.multicast;
  std::uint32_t limit = kAllSlots;  // of the peers that have credit
  bool all_have = true;
  Duration longest = kMulticastPatience;
  for (const SendMessage& message : stage.sends) {
    if (!in_step(stage, message, participants)) continue;
    const std::uint32_t end = message.sendable();
    if (end > multicast.next) {
      limit = std::min(limit, end);
    } else {
      all_have = false;
      if (operation.peers[message.peer()].heard()) longest = kPatienceWithBegun;
    }
  }
  const bool any_has = limit != kAllSlots;
  if (!any_has || all_have) {
    multicast.waits = kNever;
    return any_has ? limit : multicast.next;
  }
  if (multicast.waits == kNever) multicast.waits = now;
  Time due = multicast.waits + longest;
  if (stage.end != kNever) due = std::min(due, multicast.waits + (stage.end - multicast.waits) / 4);
  if (now >= due) return limit;
  alarm.no_later_than(due);
  return multicast.next;
}

void note_multicast(Stage& stage, const Participants& participants, std::uint32_t slots) {
  if (slots == 0) return;
  Multicast& multicast = stage.multicast;
  const std::uint32_t end = multicast.next + slots;
  for (SendMessage& message : stage.sends) {
    // A peer that was silent lacks the slots that left meanwhile. They are sent to it alone.
    const bool hears = !participants.is_silent(message.peer()) && message.next() >= multicast.next;
    if (hears) message.set_next(std::max(message.next(), end));
  }
  multicast.next = end;
  multicast.waits = kNever;
}

std::optional<Rank> answer_to(Stage& stage, Rank peer, std::uint32_t slot, Time now) {
  constexpr Duration kSameLoss = 10ms;
  constexpr Duration kOnItsWay = 2ms;
  std::vector<Multicast::Answer>& answers = stage.multicast.answers;
  if (answers.empty()) answers.resize(stage.sends.front().slots());
  Multicast::Answer& latest = answers[slot];
  const bool known = latest.at != Time{};
  if (known && latest.to_all && now - latest.at < kOnItsWay) return std::nullopt;
  latest = {.at = now, .to_all = known && now - latest.at < kSameLoss};
  return latest.to_all ? kAllRanks : peer;
}

std::uint32_t unicast_limit(const Stage& stage, const SendMessage& message,
                            const Participants& participants) {
  const std::uint32_t end = message.sendable();
  if (!stage.multicast.on || participants.is_silent(message.peer())) return end;
  return std::min(end, stage.multicast.next);
}

}  // namespace tarpon
