// What an AllReduce that is over teaches: the bounds of later ones, and the loss of each sender.
#include <algorithm>

#include "collectives/executor/allreduce_operation.h"

namespace tarpon {

/// For the bounds of the operations to come. What always runs exact waits for other things, and
/// comes at other times: between the calls of a benchmark, say, to compare their results.
void AllreduceOperation::learn() {
  if (!can_be_bounded(call_->arguments.type, call_->arguments.function)) return;
  BoundSample sample;
  sample.bytes = bucket_bytes();
  double received = 0;
  std::uint64_t due = 0, heard = 0;  // ranks
  for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage) {
    const StageReport& report = call_->report.stages[stage];
    sample.elapsed[stage] = report.elapsed;
    sample.closing[stage] = report.closing;
    double slots = 0, here = 0;
    for (const Schedule::Transfer& transfer : schedule_.stages[stage].receives) {
      const MessageProgress message =
          endpoint_.progress(handle_, static_cast<std::uint8_t>(stage), transfer.peer);
      if ((setting_.absent & bit(transfer.peer)) != 0) continue;
      slots += message.slots;
      here += message.received;
      if (message.slots > 0) due |= bit(transfer.peer);
      if (message.received > 0) heard |= bit(transfer.peer);
    }
    if (slots > 0) sample.received[stage] = here / slots;
    if (here == slots) sample.closing[stage] = Closing::complete;  // but for absent ranks
    received += here;
  }
  if (due == 0) return;  // of nobody anything was to come: no stage took any time
  // A stage without messages ends at once.
  sample.elapsed[kGather] = std::max(sample.elapsed[kScatter], sample.elapsed[kGather]);
  const std::uint64_t late = endpoint_.take_late_packets(handle_);
  sample.packets = received + static_cast<double>(late);
  sample.late = static_cast<double>(late) / std::max(1.0, sample.packets);
  sample.silent = due & ~heard;
  sample.bounded = call_->report.mode == Mode::bounded;
  setting_.bounds->learn(sample, call_->arguments.bound_rule);
  for (Rank peer = 0; peer < setting_.world; ++peer) {
    if (peer == setting_.rank) continue;
    setting_.bounds->heard(peer, sample.bytes, endpoint_.stage_time(handle_, peer));
  }
}

void AllreduceOperation::learn_losses() {
  if (call_->report.mode == Mode::exact) return;
  for (const Schedule::Transfer& transfer : schedule_.stages[kScatter].receives) {
    const MessageProgress message = endpoint_.progress(handle_, kScatter, transfer.peer);
    setting_.losses->learn(transfer.peer, message.slots, message.received);
  }
}

}  // namespace tarpon
