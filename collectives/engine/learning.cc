// Learns from an AllReduce that is over: the bounds of later ones, and the loss of each sender.
#include <algorithm>

#include "collectives/engine/tar_call.h"

namespace tarpon {

/// Takes a sample for the bounds of later calls, before the call is closed at the endpoint. Samples
/// come from bounded calls, and from exact ones that calibrate BoundRule::optireduce.
void TarCall::take_sample() {
  const Report& report = call_->report;
  const bool bounded = report.mode == Mode::bounded;
  const bool calibrates = may_run_bounded(call_->arguments) &&
                          report.operation < Bounds::calibration(call_->arguments.bound_rule);
  if (!bounded && !calibrates) return;
  BoundSample sample;
  sample.kind = kind();
  sample.bounded = bounded;
  sample.lost = report.causes.of_live_ranks();
  double received = 0, due = 0;                                 // slots
  double scattered = 0, scatter = 0, gathered = 0, gather = 0;  // of ranks that were not late
  for (Rank peer = 0; peer < setting_.world; ++peer) {
    if (peer == setting_.rank || (setting_.absent & bit(peer)) != 0) continue;
    const MessageProgress first = endpoint_.progress(handle(), kScatter, peer);
    const MessageProgress second = endpoint_.progress(handle(), kGather, peer);
    received += first.received + second.received;
    due += first.slots + second.slots;
    if (first.slots + second.slots > 0 && first.received + second.received == 0) {
      if (!first.heard) {
        sample.silent |= bit(peer);
      } else {
        const Duration after_start = std::max(Duration::zero(), first.begun - clock_);
        sample.straggler = std::max(sample.straggler.value_or(after_start), after_start);
      }
    } else {
      scattered += first.received;
      scatter += first.slots;
      gathered += second.received;
      gather += second.slots;
    }
    hear_terms(peer);
    setting_.bounds->heard(peer, kind(), endpoint_.stage_time(handle(), peer));
  }
  if (due == 0) return;  // no rank had data to send here: no stage took any time
  if (scatter > 0) sample.scattered = scattered / scatter;
  if (gather > 0) sample.gathered = gathered / gather;
  for (std::size_t stage = 0; stage < 2; ++stage)
    sample.stages[stage] = report.stages[stage].elapsed;
  // A stage without messages ends at once.
  sample.stages[kGather] = std::max(sample.stages[kScatter], sample.stages[kGather]);
  const std::uint64_t late = endpoint_.take_late_packets(handle());
  sample.packets = received + static_cast<double>(late);
  const bool early = report.stages[kScatter].closing == Closing::early ||
                     report.stages[kGather].closing == Closing::early;
  if (early) sample.early_lost = static_cast<double>(late) / std::max(1.0, sample.packets);
  sample_ = sample;
}

/// Learns from the sample when the call returns.
void TarCall::learn(Time now) {
  const Time from = clock_ == kNever ? began_ : clock_;
  sample_->elapsed = now - from;
  const auto [scatter, gather] = sample_->stages;
  // The time that this rank needs after its scatter ends when its shard is delivered. Its own
  // gather may still wait for owners whose scatters take longer.
  const Duration delivered =
      delivered_ == kNever ? Duration::max() : std::max(delivered_ - from, scatter);
  const Duration after_gather = sample_->elapsed - std::min(sample_->elapsed, gather);
  sample_->gather = std::min(gather, delivered) - scatter + after_gather;
  setting_.bounds->learn(*sample_, call_->arguments.bound_rule, call_->arguments.bound);
}

void TarCall::learn_losses() {
  if (call_->report.mode == Mode::exact) return;
  for (const TarShards::Shard& shard : shards_.others) {
    const MessageProgress message = endpoint_.progress(handle(), kScatter, shard.owner);
    setting_.losses->learn(shard.owner, message.slots, message.received);
  }
}

}  // namespace tarpon
