// The clock of bounded operations: it starts when half of the ranks have begun, since one early
// rank must not cost the others their data. Then the caller says when the stages end.
#include <algorithm>
#include <array>

#include "transport/endpoint/state.h"

namespace tarpon {

namespace {

/// The longest time by which a call is dated back. Encoding takes less, and a packet that took
/// longer no longer counts.
constexpr Duration kOldest = 10s;

}  // namespace

/// Returns when an operation began at a peer: `before` ago, at most kOldest.
Time Endpoint::State::begun_before(Duration before) const {
  const Duration known = std::clamp(before, Duration::zero(), kOldest);
  return latest - std::min(known, latest.time_since_epoch());
}

/// Returns the latest time at which the operation of the packet in hand may have begun at its
/// sender; kNever: not known. The READY of an operation says how long before it the operation began
/// (`encoded`); DATA that overtakes the READY does not, and passes 0.
Time Endpoint::State::begun_at_sender(Duration encoded) const {
  const Duration age = clocks.age();
  return age == kUnknownAge ? kNever : begun_before(age + encoded);
}

bool Endpoint::State::enough_have_begun(const Operation& operation) const {
  return operation.started == kNever &&
         2 * operation.heard >= standings.live_in(operation.tag, operation.number);
}

/// Call it when a rank has begun. Starts the clock if half of the ranks have, at the time when the
/// last rank of that half did.
void Endpoint::State::another_has_begun(Operation& operation) {
  if (!enough_have_begun(operation)) return;
  struct Begun {
    Time at;
    Duration read_after;
  };
  std::array<Begun, 64> all;
  std::size_t count = 0;
  all[count++] = {operation.began, {}};
  for (const PeerView& view : operation.peers) {
    if (view.heard) all[count++] = {view.begun, view.read_after};
  }
  const std::uint32_t live = standings.live_in(operation.tag, operation.number);
  const auto last = all.begin() + (std::max(live, 1u) - 1) / 2;
  std::nth_element(all.begin(), last, all.begin() + static_cast<std::ptrdiff_t>(count),
                   [](const Begun& a, const Begun& b) { return a.at < b.at; });
  start_clock(operation, last->at, last->read_after);
}

/// Call it when fewer ranks take part. Starts the clock if those that have begun are half of them.
void Endpoint::State::fewer_take_part(Operation& operation, Time now) {
  if (enough_have_begun(operation)) start_clock(operation, now, {});
}

void Endpoint::State::start_clock(Operation& operation, Time at, Duration read_after) {
  operation.started = at;
  operation.read_after = read_after;
  timer = std::min(timer, latest);
  if (!operation.bounded) return;
  Event event;
  event.kind = Event::Kind::clock;
  event.at = at;
  tell(operation, event);
}

void Endpoint::set_ends(OperationHandle handle, const StageEnds& ends, Time now) {
  State& s = *state_;
  Operation* operation = s.find(handle);
  require(operation != nullptr && operation->bounded && operation->started != kNever,
          "set_ends() of a bounded operation whose clock has started");
  s.latest = now;
  operation->grace = ends.lateness.grace;
  if (operation->late) return;
  operation->hold = ends.hold;
  for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
    operation->stages[i].end = ends.at[i];
  }
  s.timer = std::min(s.timer, now);
  if (!operation->asks_if_late) return;
  if (operation->opened > ends.lateness.late_after) {
    return s.become_late(*operation, s.options.rank, now);
  }
  // If the packet that started this clock waited here before it was read, the clocks of other ranks
  // started earlier. If nothing tells how old that packet was, they may have started when this rank
  // submitted.
  const Duration unseen = operation->read_after == kUnknownAge
                              ? operation->started - operation->opened
                              : operation->read_after;
  const Time end = operation->last_stage().end;
  s.lateness.set_time(*operation, end - unseen - ends.lateness.notice, now);
}

void Endpoint::end_stage(OperationHandle handle, std::size_t stage, Time now) {
  State& s = *state_;
  Operation* operation = s.find(handle);
  require(operation != nullptr && operation->bounded && stage < operation->stage_count,
          "end_stage() of a stage of a bounded operation");
  s.latest = now;
  if (operation->late) return;
  Stage& ended = operation->stages[stage];
  ended.end = std::min(ended.end, now);
  s.timer = std::min(s.timer, now);
  if (stage + 1u != operation->stage_count) return;
  s.lateness.end_stage(*operation, now);
}

std::optional<CallTerms> Endpoint::terms(OperationHandle handle, Rank peer) const {
  Operation* operation = state_->find(handle);
  require(operation != nullptr && peer < state_->options.world_size,
          "terms() of an open operation and a rank");
  return operation->peers[peer].terms;
}

}  // namespace tarpon
