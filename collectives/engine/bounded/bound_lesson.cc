#include "collectives/engine/bounded/bound_lesson.h"

#include <algorithm>

#include "collectives/engine/schedules/tar_shards.h"
#include "transport/rank_mask.h"

namespace tarpon {

void BoundLesson::take(const Report& report) {
  const bool bounded = report.mode == Mode::bounded;
  const bool calibrates = may_run_bounded(call_.arguments) &&
                          report.operation < Bounds::calibration(call_.arguments.bound_rule);
  if (!bounded && !calibrates) return;
  BoundSample sample;
  sample.kind = call_.clock.kind();
  sample.bounded = bounded;
  sample.lost = report.causes.of_live_ranks();
  double received = 0, due = 0;                                 // slots
  double scattered = 0, scatter = 0, gathered = 0, gather = 0;  // of ranks that were not late
  for (Rank peer = 0; peer < call_.world; ++peer) {
    if (peer == call_.rank || (call_.absent & bit(peer)) != 0) continue;
    const MessageProgress first = call_.endpoint.view(call_.handle).progress(kScatter, peer);
    const MessageProgress second = call_.endpoint.view(call_.handle).progress(kGather, peer);
    received += first.received + second.received;
    due += first.slots + second.slots;
    if (first.slots + second.slots > 0 && first.received + second.received == 0) {
      if (!first.heard) {
        sample.silent |= bit(peer);
      } else {
        const Duration after_start =
            std::max(Duration::zero(), first.begun - call_.clock.started());
        sample.straggler = std::max(sample.straggler.value_or(after_start), after_start);
      }
    } else {
      scattered += first.received;
      scatter += first.slots;
      gathered += second.received;
      gather += second.slots;
    }
    call_.clock.hear_terms(peer);
    call_.bounds.heard(peer, sample.kind, call_.endpoint.view(call_.handle).stage_time(peer));
  }
  // No rank had data to send here: no stage took any time. Over hosts data comes through the
  // memory.
  if (due == 0 && !sample.kind.over_hosts) return;
  if (scatter > 0) sample.scattered = scattered / scatter;
  if (gather > 0) sample.gathered = gathered / gather;
  for (std::size_t stage = 0; stage < 2; ++stage) {
    sample.stages[stage] = report.stages[stage].elapsed;
  }
  // A stage without messages ends at once.
  sample.stages[kGather] = std::max(sample.stages[kScatter], sample.stages[kGather]);
  const std::uint64_t late = call_.endpoint.take_late_packets(call_.handle);
  sample.packets = received + static_cast<double>(late);
  const bool early = report.stages[kScatter].closing == Closing::early ||
                     report.stages[kGather].closing == Closing::early;
  if (early) sample.early_lost = static_cast<double>(late) / std::max(1.0, sample.packets);
  sample_ = sample;
}

void BoundLesson::teach(Time began, Time now) {
  if (!sample_) return;
  const Time from = call_.clock.has_started() ? call_.clock.started() : began;
  sample_->elapsed = now - from;
  const auto [scatter, gather] = sample_->stages;
  // The time that this rank needs after its scatter ends when its shard is delivered. Its own
  // gather may still wait for owners whose scatters take longer.
  const Duration delivered =
      delivered_ == kNever ? Duration::max() : std::max(delivered_ - from, scatter);
  const Duration after_gather = sample_->elapsed - std::min(sample_->elapsed, gather);
  sample_->gather = std::min(gather, delivered) - scatter + after_gather;
  // Without a gather the rest is the wait for the owners, some of which may be late.
  if (!sample_->kind.gathers()) sample_->gather = Duration::zero();
  call_.bounds.learn(*sample_, call_.arguments.bound_rule, call_.arguments.bound);
}

}  // namespace tarpon
